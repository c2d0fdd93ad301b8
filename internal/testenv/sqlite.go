package testenv

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the "sqlite" driver: no C compiler needed
)

// sqliteParameters is the recommended setup: WAL lets readers pass the one
// writer, immediate transactions wait their turn by busy_timeout instead of
// failing half-way, FULL makes a commit durable. An application waits for less
// long than a test does.
const sqliteParameters = "?_pragma=journal_mode(WAL)&_pragma=" + patientSQLite +
	"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_txlock=immediate"

// SQLite returns a session on a new, empty SQLite file in a directory of the
// test (pure Go driver, no C compiler needed). The pool is closed when the
// test ends.
func SQLite(t testing.TB) *gorm.DB {
	t.Helper()
	return OpenSQLite(t, SQLiteDSN(t))
}

// SQLiteDSN returns the DSN of a SQLite file, not there yet, in a directory of
// the test.
func SQLiteDSN(t testing.TB) string {
	t.Helper()
	path := url.URL{Path: filepath.ToSlash(filepath.Join(t.TempDir(), "inbox.db"))}
	return "file:" + path.EscapedPath() + sqliteParameters
}

// patientSQLite is Patience in milliseconds.
const patientSQLite = "busy_timeout(120000)"

// BusyTimeout changes a DSN of SQLiteDSN: its pools give up after that long when
// another one writes.
func BusyTimeout(dsn string, d time.Duration) string {
	return strings.Replace(dsn, patientSQLite, fmt.Sprintf("busy_timeout(%d)", d.Milliseconds()), 1)
}

// OpenSQLite opens one more pool on a file that SQLiteDSN named, and closes it
// when the test ends: a second process of the same inbox.
func OpenSQLite(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, gorm.Config{})
}

// Open opens a quiet session and closes its pool when the test ends, which is
// before the database is removed: cleanups run in reverse order.
func Open(t testing.TB, dialector gorm.Dialector, config gorm.Config) *gorm.DB {
	t.Helper()
	config.Logger = logger.Discard
	db, err := gorm.Open(dialector, &config)
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(40)
	pool.SetMaxIdleConns(10)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return db
}
