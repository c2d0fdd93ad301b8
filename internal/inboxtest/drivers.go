package inboxtest

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// OnEachDriver is like OnEach for each driver: SQLite's in Go and, if there is a C compiler, in C,
// and PostgreSQL. Each driver also runs with GORM's cache of prepared statements.
func OnEachDriver(t *testing.T, test func(t *testing.T, d *Database)) {
	t.Helper()
	t.Parallel()
	inC := func(t *testing.T) (string, gorm.Dialector) {
		if !cgo {
			testenv.LeaveOut(t, "the SQLite driver in C", "CGO_ENABLED")
		}
		dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
			"?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"
		return dsn, sqlite.Open(dsn)
	}
	inGo := func(t *testing.T) (string, gorm.Dialector) {
		dsn := testenv.SQLiteDSN(t)
		return dsn, sqlite.Dialector{DriverName: "sqlite", DSN: dsn}
	}
	onServer := func(t *testing.T) (string, gorm.Dialector) {
		dsn := testenv.PostgresDSN(t)
		return dsn, postgres.Open(dsn)
	}
	for _, driver := range []struct {
		name, dialect string
		dialector     func(t *testing.T) (string, gorm.Dialector)
	}{{"sqlite", "sqlite", inGo}, {"sqlite in C", "sqlite", inC}, {"postgres", "postgres", onServer}} {
		for name, prepare := range map[string]bool{driver.name: false, driver.name + ", prepared": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dsn, dialector := driver.dialector(t)
				db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, PrepareStmt: prepare})
				require.NoError(t, err)
				pool, err := db.DB()
				require.NoError(t, err)
				pool.SetMaxOpenConns(20)
				t.Cleanup(func() { require.NoError(t, pool.Close()) })
				test(t, &Database{Dialect: driver.dialect, DB: db, dsn: dsn})
			})
		}
	}
}
