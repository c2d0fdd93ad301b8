package servers

import (
	"errors"
	"os"
	"path/filepath"
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
		KafkaEnv:    func() error { _, err := StartKafka(KafkaOptions{}); return err },
		RedisEnv:    func() error { _, err := StartRedis(RedisOptions{}); return err },
	} {
		t.Setenv(variable+MissingSuffix, "the reason")
		var missing *Missing
		require.ErrorAs(t, start(), &missing, variable)
		require.Contains(t, missing.LeftOut(), " (the reason)")
	}
}

func TestProgramIsFoundOnThePathOrInTheSbinBesideIt(t *testing.T) {
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

func TestDownloadThatFailedIsNotTriedAgain(t *testing.T) {
	var f fetch
	tries := 0
	download := func() error { tries++; return errors.New("no network") }
	require.ErrorContains(t, f.once(download), "no network")
	require.ErrorContains(t, f.once(download), "no network")
	require.Equal(t, 1, tries)
}
