package demo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// environment returns an environment with a database that has a table.
func environment(t *testing.T, server string) (*Environment, *Database) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	e, err := NewEnvironment(Options{Name: "demo", Server: server, Out: t.Output()})
	require.NoError(t, err)
	d, err := e.Database(t.Context(), "notes")
	require.NoError(t, err)
	require.NoError(t, d.DB.Exec("CREATE TABLE notes (id int)").Error)
	return e, d
}

func found(t *testing.T, dsn, query string) (n int) {
	t.Helper()
	db, err := Open(dsn, 1)
	require.NoError(t, err)
	require.NoError(t, db.Raw(query).Scan(&n).Error)
	require.NoError(t, Close(db))
	return n
}

func TestDataIsRemovedUnlessItIsKept(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		kept, d := environment(t, "")
		require.NoError(t, kept.Close(t.Context(), true))
		require.Zero(t, found(t, d.DSN, "SELECT COUNT(*) FROM notes"))
		e, _ := environment(t, "")
		require.NoError(t, e.Close(t.Context(), false))
		require.NoDirExists(t, e.Dir)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		server := testenv.PostgresDSN(t)
		const schemas = "SELECT COUNT(*) FROM pg_namespace WHERE nspname LIKE 'demo\\_notes\\_%'"
		kept, d := environment(t, server)
		require.Equal(t, 1, found(t, server, schemas))
		require.Zero(t, found(t, server,
			"SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public' AND tablename = 'notes'"))
		require.NoError(t, kept.Close(t.Context(), true))
		require.Zero(t, found(t, d.DSN, "SELECT COUNT(*) FROM notes"))
		e, _ := environment(t, server)
		require.Equal(t, 2, found(t, server, schemas))
		require.NoError(t, e.Close(t.Context(), false))
		require.Equal(t, 1, found(t, server, schemas))
		require.NoDirExists(t, e.Dir)
	})
}

func TestMySQLDatabaseIsRemovedUnlessItIsKept(t *testing.T) {
	server := testenv.MySQLDSN(t, testenv.MariaDBVariable)
	const databases = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'demo\\_notes\\_%'"
	kept, d := environment(t, server)
	require.Equal(t, 1, found(t, server, databases))
	require.NoError(t, kept.Close(t.Context(), true))
	require.Zero(t, found(t, d.DSN, "SELECT COUNT(*) FROM notes"))
	e, _ := environment(t, server)
	require.Equal(t, 2, found(t, server, databases))
	require.NoError(t, e.Close(t.Context(), false))
	require.Equal(t, 1, found(t, server, databases))
	require.NoError(t, execute(t.Context(), server, "DROP DATABASE "+kept.created[0]))
}

func TestDataIsReadableOnlyByItsUser(t *testing.T) {
	e, _ := environment(t, "")
	defer func() { require.NoError(t, e.Close(t.Context(), false)) }()
	info, err := os.Stat(e.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestSQLiteIsDurableAndLetsReadersPass(t *testing.T) {
	e, d := environment(t, "")
	defer func() { require.NoError(t, e.Close(t.Context(), false)) }()
	require.True(t, OnSQLite(d.DSN))
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "foreign_keys": "1",
		"busy_timeout": "10000"} {
		var value string
		require.NoError(t, d.DB.Raw("PRAGMA "+pragma).Scan(&value).Error)
		require.Equal(t, want, value, pragma)
	}
}

// SQLite reads the path of a DSN as a URL's: special characters must not lead to another file.
func TestSQLiteFileMayBeAnywhere(t *testing.T) {
	for _, directory := range []string{"a#b", "a?b", "100% ü+", "%41", "a&b=c;d"} {
		file := filepath.Join(t.TempDir(), directory, "x.db")
		require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
		db, err := Open(sqliteDSN(file), 1)
		require.NoError(t, err)
		require.NoError(t, db.Exec("CREATE TABLE t (n int)").Error, directory)
		require.NoError(t, Close(db))
		require.FileExists(t, file)
	}
}
