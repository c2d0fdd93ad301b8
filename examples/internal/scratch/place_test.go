package scratch

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

var program = Program{Name: "scratch", File: "scratch.db", Open: func(dsn string) (*gorm.DB, error) {
	return Open(dsn, 2)
}}

// placeOf makes a place with a table in it.
func placeOf(t *testing.T, server string) *Place {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	p, err := program.Place(t.Context(), server)
	require.NoError(t, err)
	require.NoError(t, p.DB.Exec("CREATE TABLE notes (id int)").Error)
	return p
}

func found(t *testing.T, dsn, query string) (n int) {
	t.Helper()
	db, err := Open(dsn, 1)
	require.NoError(t, err)
	require.NoError(t, db.Raw(query).Scan(&n).Error)
	require.NoError(t, Close(db))
	return n
}

func TestPlaceIsGoneUnlessItIsKept(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		kept := placeOf(t, "")
		require.NoError(t, kept.Close(t.Context(), true))
		require.Zero(t, found(t, kept.DSN, "SELECT COUNT(*) FROM notes"))
		p := placeOf(t, "")
		require.NoError(t, p.Close(t.Context(), false))
		require.NoDirExists(t, p.Dir)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		server := testenv.PostgresDSN(t)
		const schemas = "SELECT COUNT(*) FROM pg_namespace WHERE nspname LIKE 'scratch\\_%'"
		kept := placeOf(t, server)
		require.Equal(t, 1, found(t, server, schemas))
		require.Zero(t, found(t, server,
			"SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public' AND tablename = 'notes'"))
		require.NoError(t, kept.Close(t.Context(), true))
		require.Zero(t, found(t, kept.DSN, "SELECT COUNT(*) FROM notes"))
		p := placeOf(t, server)
		require.Equal(t, 2, found(t, server, schemas))
		require.NoError(t, p.Close(t.Context(), false))
		require.Equal(t, 1, found(t, server, schemas))
		require.NoDirExists(t, p.Dir)
	})
}

func TestSQLiteIsDurableAndLetsReadersPass(t *testing.T) {
	p := placeOf(t, "")
	defer func() { require.NoError(t, p.Close(t.Context(), false)) }()
	require.True(t, OnSQLite(p.DSN))
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "foreign_keys": "1",
		"busy_timeout": "10000"} {
		var value string
		require.NoError(t, p.DB.Raw("PRAGMA "+pragma).Scan(&value).Error)
		require.Equal(t, want, value, pragma)
	}
}
