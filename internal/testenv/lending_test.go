package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestReusedTestDatabaseIsLikeANewOne(t *testing.T) {
	var used string
	t.Run("used", func(t *testing.T) {
		used = testenv.PostgresDSN(t)
		db := testenv.OpenPostgres(t, used)
		require.NoError(t,
			db.Exec(`CREATE SCHEMA "odd ""name"; CREATE TABLE "odd ""name".t (n integer); CREATE TABLE seen (n integer)`).Error)
		left, err := db.DB() // a connection as a killed process leaves it
		require.NoError(t, err)
		connection, err := left.Conn(t.Context())
		require.NoError(t, err)
		_, err = connection.ExecContext(t.Context(), `BEGIN; LOCK TABLE seen; SELECT pg_advisory_lock(1)`)
		require.NoError(t, err)
	})
	t.Run("used again", func(t *testing.T) {
		dsn := testenv.PostgresDSN(t)
		require.Equal(t, used, dsn, "it is lent again")
		db := testenv.OpenPostgres(t, dsn)
		require.Equal(t, 0, number(t, db,
			`SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'`))
		require.Equal(t, 1, number(t, db,
			`SELECT count(*) FROM pg_namespace WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'`))
		require.Equal(t, 1, number(t, db, `SELECT pg_try_advisory_lock(1)::integer`))
		require.NoError(t, db.Exec(`CREATE TABLE seen (n integer)`).Error)
		require.NoError(t,
			db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$`).Error)
	})
	t.Run("set up in another way", func(t *testing.T) {
		require.NotEqual(t, used, testenv.PostgresDSN(t))
	})
}

func number(t *testing.T, db *gorm.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.Raw(query).Scan(&n).Error)
	return n
}
