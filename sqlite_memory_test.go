package inbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestStartRefusesInMemorySQLiteAndSuggestsADSN(t *testing.T) {
	for _, driver := range []string{"sqlite", "sqlite3"} { // modernc.org/sqlite, github.com/mattn/go-sqlite3
		for _, dsn := range []string{":memory:", "file::memory:?cache=shared", "file:shared?mode=memory&cache=shared"} {
			t.Run(driver+" "+dsn, func(t *testing.T) {
				db, err := gorm.Open(sqlite.Dialector{DriverName: driver, DSN: dsn}, &gorm.Config{Logger: logger.Discard})
				require.NoError(t, err)
				pool, err := db.DB()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, pool.Close()) })
				ib, err := inbox.New("orders", db, inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
					inboxtest.Handlers(nothing("a")))
				require.NoError(t, err)
				err = ib.Start(t.Context())
				require.ErrorContains(t, err, `inbox "orders": the SQLite database is in memory`)
				require.ErrorContains(t, err,
					"file:inbox.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
			})
		}
	}
}
