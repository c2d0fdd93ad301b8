package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// commandEnv makes this test binary run the command itself.
const commandEnv = "INBOX_TEST_WITHSERVERS"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestServersRunOnlyDuringTheCommand(t *testing.T) {
	output, status := withservers(t, nil, "sh", "-c",
		"echo $INBOX_TEST_POSTGRES $INBOX_TEST_KAFKA $INBOX_TEST_REDIS $INBOX_TEST_MARIADB $INBOX_TEST_MYSQL; exit 7")
	require.Equal(t, 7, status, output)
	leaveOutIfMissing(t, output)
	fields := strings.Fields(output)
	require.Len(t, fields, 5)
	require.True(t, strings.HasPrefix(fields[0], "postgres://"), output)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, servers.PingPostgres(ctx, fields[0]), syscall.ECONNREFUSED)
	require.ErrorIs(t, servers.NewAdmin(fields[1]).Ping(ctx), syscall.ECONNREFUSED)
	require.ErrorIs(t, servers.PingRedis(ctx, fields[2]), syscall.ECONNREFUSED)
	require.ErrorIs(t, servers.PingMySQL(ctx, fields[3]), syscall.ECONNREFUSED)
	require.ErrorIs(t, servers.PingMySQL(ctx, fields[4]), syscall.ECONNREFUSED)
}

func TestNamedServersAreUsedUnchanged(t *testing.T) {
	postgres, err := servers.StartPostgres(servers.PostgresOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, postgres.Close()) })
	kafka, err := servers.StartKafka(servers.KafkaOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, kafka.Close()) })
	redis, err := servers.StartRedis(servers.RedisOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	mariadb, err := servers.StartMariaDB(servers.MySQLOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, mariadb.Close()) })
	named := []string{servers.PostgresEnv + "=" + postgres.DSN(), servers.KafkaEnv + "=" + kafka.Brokers()[0],
		servers.RedisEnv + "=" + redis.URL(), servers.MariaDBEnv + "=" + mariadb.DSN(), servers.MySQLEnv + "=" + mariadb.DSN()}

	t.Run("answering", func(t *testing.T) {
		output, status := withservers(t, named, "sh", "-c",
			"echo $INBOX_TEST_POSTGRES $INBOX_TEST_KAFKA $INBOX_TEST_REDIS $INBOX_TEST_MARIADB")
		require.Zero(t, status, output)
		require.Equal(t, postgres.DSN()+" "+kafka.Brokers()[0]+" "+redis.URL()+" "+mariadb.DSN()+"\n", output)
	})
	t.Run("silent", func(t *testing.T) {
		require.NoError(t, postgres.Stop())
		require.NoError(t, redis.Stop())
		require.NoError(t, mariadb.Stop())
		output, status := withservers(t, named, "echo", "ran")
		require.Equal(t, 1, status)
		require.Contains(t, output, servers.PostgresEnv+"="+postgres.DSN()+" does not answer")
		require.Contains(t, output, servers.RedisEnv+"="+redis.URL()+" does not answer")
		require.Contains(t, output, servers.MariaDBEnv+"="+mariadb.DSN()+" does not answer")
		require.NotContains(t, output, "ran\n")
	})
}

// bare returns the environment of a machine without MariaDB, MySQL, Java and Redis. It names a PostgreSQL that does not
// answer.
func bare(t *testing.T) []string {
	return []string{servers.PostgresEnv + "=postgres://postgres@127.0.0.1:1/postgres",
		servers.MySQLEnv + servers.MissingSuffix + "=no network", "PATH=" + t.TempDir(), "JAVA_HOME="}
}

func TestMissingServersAreLeftOutAndNamed(t *testing.T) {
	postgres, err := servers.StartPostgres(servers.PostgresOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, postgres.Close()) })
	output, status := withservers(t, append(bare(t), servers.PostgresEnv+"="+postgres.DSN()), "/bin/sh", "-c",
		`echo "[$INBOX_TEST_KAFKA] $INBOX_TEST_KAFKA_MISSING"; echo "[$INBOX_TEST_REDIS] $INBOX_TEST_REDIS_MISSING"; echo "[$INBOX_TEST_POSTGRES_MISSING]"`)
	require.Zero(t, status, output)
	require.Contains(t, output,
		"withservers: left out: Kafka on a real broker: no Java 17 or newer; install ")
	require.Contains(t, output, "withservers: left out: Redis: no redis-server on the PATH; install ")
	require.Contains(t, output, "withservers: left out: MariaDB: no mariadbd on the PATH; install ")
	require.Contains(t, output, "withservers: left out: MySQL: no network; install ")
	require.Contains(t, output, "\n[] no Java 17 or newer\n[] no redis-server on the PATH\n[]\n")
}

func TestRequiredMissingServersFailWithOneLineEach(t *testing.T) {
	for _, variable := range []string{"INBOX_TEST_REQUIRE=1", "CI=true"} {
		output, status := withservers(t, append(bare(t), variable), "/bin/sh", "-c", "echo ran")
		require.Equal(t, 1, status)
		lines := strings.Split(strings.TrimSpace(output), "\n")
		require.Len(t, lines, 5, output)
		require.Contains(t, lines[0], "withservers: INBOX_TEST_POSTGRES=")
		require.Contains(t, lines[1], "withservers: MariaDB: no mariadbd")
		require.Contains(t, lines[2], "withservers: MySQL: no network")
		require.Contains(t, lines[3], "withservers: Kafka on a real broker: no Java")
		require.Contains(t, lines[4], "withservers: Redis: no redis-server")
	}
}

func TestSignalEndsTheCommandAndTheServers(t *testing.T) {
	command := prepare(nil, "sh", "-c", `echo "$INBOX_TEST_POSTGRES"; sleep 1000 & wait`)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	line := make([]byte, 200)
	n, err := output.Read(line) // the command runs
	require.NoError(t, err)
	dsn := strings.TrimSpace(string(line[:n]))
	if dsn == "" {
		testenv.LeaveOut(t, "PostgreSQL", servers.PostgresEnv)
	}

	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	var rest bytes.Buffer
	_, err = rest.ReadFrom(output) // ends when no process holds the pipe, so not before the sleep has ended
	require.NoError(t, err)
	var exit *exec.ExitError
	require.ErrorAs(t, command.Wait(), &exit)
	require.Equal(t, 128+int(syscall.SIGTERM), exit.ExitCode())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, servers.PingPostgres(ctx, dsn), syscall.ECONNREFUSED)
}

// leaveOutIfMissing leaves a test out if the command ran without one of its servers.
func leaveOutIfMissing(t *testing.T, output string) {
	t.Helper()
	if _, missing, found := strings.Cut(output, "withservers: left out: "); found {
		missing, _, _ = strings.Cut(missing, ";")
		server, why, _ := strings.Cut(missing, ": ")
		testenv.LeaveOutIf(t, &servers.Missing{Server: server, Why: why})
	}
}

func withservers(t *testing.T, environment []string, arguments ...string) (output string, status int) {
	t.Helper()
	command := prepare(environment, arguments...)
	combined, err := command.CombinedOutput()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return string(combined), command.ProcessState.ExitCode()
}

// prepare returns a command whose environment has neither the servers nor the requirements of the
// test run itself.
func prepare(environment []string, arguments ...string) *exec.Cmd {
	command := exec.Command(os.Args[0], append([]string{"--"}, arguments...)...)
	command.Env = append(os.Environ(), commandEnv+"=1", testenv.RequireVariable+"=", "CI=")
	for _, variable := range []string{servers.PostgresEnv, servers.MariaDBEnv, servers.MySQLEnv, servers.KafkaEnv,
		servers.RedisEnv} {
		command.Env = append(command.Env, variable+"=", variable+servers.MissingSuffix+"=")
	}
	command.Env = append(command.Env, environment...)
	return command
}
