package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestEveryDatabaseIsFreshAndReopens(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		dsn := testenv.SQLiteDSN(t)
		check(t, testenv.OpenSQLite(t, dsn), testenv.OpenSQLite(t, dsn), testenv.SQLite(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		dsn := testenv.PostgresDSN(t)
		check(t, testenv.OpenPostgres(t, dsn), testenv.OpenPostgres(t, dsn), testenv.Postgres(t))
	})
}

func check(t *testing.T, one, same, other *gorm.DB) {
	require.NoError(t, one.Exec("CREATE TABLE seen (n integer)").Error)
	require.True(t, same.Migrator().HasTable("seen"), "two pools on one database")
	require.False(t, other.Migrator().HasTable("seen"), "another database")
}
