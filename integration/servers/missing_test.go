package servers

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// leaveOutIfMissing leaves a test out if its server is not installed. Other errors are left to the
// test.
func leaveOutIfMissing(t *testing.T, err error) {
	t.Helper()
	if errors.As(err, new(*Missing)) {
		testenv.LeaveOutIf(t, err)
	}
}

func TestServerKnownToBeMissingIsNotSearched(t *testing.T) {
	require.Equal(t, testenv.MissingSuffix, MissingSuffix)
	for variable, start := range map[string]func() error{
		PostgresEnv: func() error { _, err := StartPostgres(PostgresOptions{}); return err },
		MariaDBEnv:  func() error { _, err := StartMariaDB(MySQLOptions{}); return err },
		MySQLEnv:    func() error { _, err := StartMySQL(MySQLOptions{}); return err },
		KafkaEnv:    func() error { _, err := StartKafka(KafkaOptions{}); return err },
		RedisEnv:    func() error { _, err := StartRedis(RedisOptions{}); return err },
	} {
		t.Setenv(variable+MissingSuffix, "the reason")
		var missing *Missing
		require.ErrorAs(t, start(), &missing, variable)
		require.Contains(t, missing.LeftOut(), " (the reason)")
	}
}

func TestProgramIsFoundOnThePathOrInSbin(t *testing.T) {
	root := t.TempDir()
	program := filepath.Join(root, "sbin", "pgbouncer")
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	for path, want := range map[string]string{
		filepath.Join(root, "bin"):   program,
		filepath.Join(root, "sbin"):  program,
		filepath.Join(root, "other"): "",
	} {
		t.Setenv("PATH", path)
		found, err := lookPath("pgbouncer")
		require.Equal(t, want, found)
		require.Equal(t, want == "", err != nil)
	}
}

func TestFailedDownloadIsNotRetried(t *testing.T) {
	t.Cleanup(func(usual func() (string, error)) func() {
		return func() { findJarsOnce = usual }
	}(findJarsOnce))
	findJarsOnce = sync.OnceValues(findJars)
	programs, tries := t.TempDir(), filepath.Join(t.TempDir(), "tries")
	for name, script := range map[string]string{
		"java": `echo 'openjdk version "17.0.1" 2021-10-19'`,
		"mvn":  `echo try >> ` + tries + `; echo no network; exit 1`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("PATH", programs)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv(KafkaEnv+MissingSuffix, "")
	for range 2 {
		_, err := StartKafka(KafkaOptions{})
		require.ErrorContains(t, err, "Kafka on a real broker: its jars cannot be fetched: ")
		require.ErrorContains(t, err, "no network")
		var missing *Missing
		require.ErrorAs(t, err, &missing)
		require.Equal(t, "Kafka on a real broker (its jars cannot be fetched)", missing.LeftOut())
	}
	made, err := os.ReadFile(tries)
	require.NoError(t, err)
	require.Equal(t, "try\n", string(made))
}
