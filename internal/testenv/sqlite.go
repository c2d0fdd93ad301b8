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

// sqliteParameters are the recommended setup, with a longer timeout than an application would use.
// With WAL, readers do not block the one writer. Immediate transactions wait for other writers at
// their start, within busy_timeout, instead of failing midway. FULL makes a commit durable.
const sqliteParameters = "?_pragma=journal_mode(WAL)&_pragma=" + patientSQLite +
	"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_txlock=immediate"

// SQLite returns a session on a new, empty SQLite file in a directory of the test. It uses the pure
// Go driver and needs no C compiler. The pool is closed when the test ends.
func SQLite(t testing.TB) *gorm.DB {
	t.Helper()
	return OpenSQLite(t, SQLiteDSN(t))
}

// SQLiteDSN returns the DSN of a SQLite file in a directory of the test. The file does not exist
// yet.
func SQLiteDSN(t testing.TB) string {
	t.Helper()
	path := url.URL{Path: filepath.ToSlash(filepath.Join(t.TempDir(), "inbox.db"))}
	return "file:" + path.EscapedPath() + sqliteParameters
}

// patientSQLite is Patience in milliseconds.
const patientSQLite = "busy_timeout(120000)"

// BusyTimeout returns a DSN of SQLiteDSN with another busy timeout. Its pools wait that long while
// another connection writes.
func BusyTimeout(dsn string, d time.Duration) string {
	return strings.Replace(dsn, patientSQLite, fmt.Sprintf("busy_timeout(%d)", d.Milliseconds()), 1)
}

// OpenSQLite opens one more pool on a file that SQLiteDSN named, like a second process of the same
// inbox. The pool is closed when the test ends.
func OpenSQLite(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, gorm.Config{})
}

// Open opens a session without logging and closes its pool when the test ends. The database is
// removed after that, because cleanups run in reverse order.
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
