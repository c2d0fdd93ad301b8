package servers

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// onEachMySQL runs a test with a new server of each product.
func onEachMySQL(t *testing.T, test func(t *testing.T, m *MySQL)) {
	for name, start := range map[string]func(MySQLOptions) (*MySQL, error){"MariaDB": StartMariaDB, "MySQL": StartMySQL} {
		t.Run(name, func(t *testing.T) {
			m, err := start(MySQLOptions{})
			leaveOutIfMissing(t, err)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			test(t, m)
		})
	}
}

func mysqlNumber(t *testing.T, m *MySQL, query string, arguments ...any) (n int) {
	t.Helper()
	db, err := sql.Open("mysql", m.DSN())
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRowContext(t.Context(), query, arguments...).Scan(&n))
	return n
}

func pingMySQL(m *MySQL, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return PingMySQL(ctx, m.DSN())
}

func TestMySQLKeepsItsDataThroughOutages(t *testing.T) {
	onEachMySQL(t, func(t *testing.T, m *MySQL) {
		db, err := sql.Open("mysql", m.DSN())
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "CREATE TABLE kept (n int PRIMARY KEY) ENGINE = InnoDB")
		require.NoError(t, err)
		dsn := m.DSN()
		for i, outage := range []func() error{m.Stop, m.Kill,
			func() error { return firstError(m.Freeze, m.Kill, m.Kill, m.Stop) },
			func() error { return firstError(m.Freeze, m.Stop, m.Stop, m.Kill, m.Thaw) }} {
			_, err = db.ExecContext(t.Context(), "INSERT INTO kept VALUES (?)", i)
			require.NoError(t, err)
			require.NoError(t, outage())
			require.Error(t, pingMySQL(m, time.Second), "it still answers")
			require.NoError(t, m.Start())
			require.NoError(t, m.Start(), "twice")
			require.Equal(t, dsn, m.DSN())
			require.Equal(t, i+1, mysqlNumber(t, m, "SELECT COUNT(*) FROM kept"))
			require.NoError(t, db.PingContext(t.Context()))
		}
	})
}

func TestFrozenMySQLHangsUntilThawed(t *testing.T) {
	onEachMySQL(t, func(t *testing.T, m *MySQL) {
		require.NoError(t, m.Freeze())
		require.Error(t, pingMySQL(m, 300*time.Millisecond))
		require.NoError(t, m.Thaw())
		require.NoError(t, pingMySQL(m, testenv.Patience))
	})
}

func TestMySQLIsDurableUnlessSettingsSayOtherwise(t *testing.T) {
	onEachMySQL(t, func(t *testing.T, m *MySQL) {
		require.Equal(t, 1, mysqlNumber(t, m, "SELECT @@innodb_flush_log_at_trx_commit"))
	})
	fast, err := StartMariaDB(MySQLOptions{Settings: map[string]string{"innodb_flush_log_at_trx_commit": "0"}})
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fast.Close()) })
	require.Zero(t, mysqlNumber(t, fast, "SELECT @@innodb_flush_log_at_trx_commit"))
}

func TestClosedMySQLLeavesNothing(t *testing.T) {
	onEachMySQL(t, func(t *testing.T, m *MySQL) {
		pid := m.PID()
		require.NotZero(t, pid)
		require.NoError(t, m.Freeze())
		require.NoError(t, m.Close())
		require.NoError(t, m.Close(), "twice")
		require.True(t, gone(pid))
		require.NoDirExists(t, m.directory.path)
	})
}

func TestFailedMySQLStartShowsItsLog(t *testing.T) {
	_, err := StartMariaDB(MySQLOptions{Settings: map[string]string{"no_such_setting": "1"}})
	leaveOutIfMissing(t, err)
	require.ErrorContains(t, err, "no_such_setting")
	require.NotContains(t, err.Error(), "\n")
}

func TestMissingMySQLIsNamed(t *testing.T) {
	t.Setenv(MariaDBEnv+MissingSuffix, "")
	t.Setenv("PATH", t.TempDir())
	_, err := StartMariaDB(MySQLOptions{})
	require.EqualError(t, err,
		"MariaDB: no mariadbd on the PATH; install mariadb-server-core and mariadb-client-core or set INBOX_TEST_MARIADB")
}

// TestMariaDBIsNoMySQL proves that tests of MySQL do not run on MariaDB, which installs a mysqld of its own.
func TestMariaDBIsNoMySQL(t *testing.T) {
	program := filepath.Join(t.TempDir(), "mysqld")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho mysqld Ver 10.11.19-MariaDB\n"), 0o755))
	require.True(t, isMariaDB(program))
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho mysqld Ver 8.4.3\n"), 0o755))
	require.False(t, isMariaDB(program))
}
