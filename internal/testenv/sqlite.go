package testenv

import (
	"fmt"
	"net/url"
	"os"
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

// SQLiteVariable names the environment variable that has tests open SQLite with the driver in C if
// it is "mattn", and skip all servers' databases. By default they use the driver in Go, which needs no C compiler.
const SQLiteVariable = "INBOX_TEST_SQLITE"

// sqliteAlone reports whether the tests run for the sake of that driver: on no other database.
func sqliteAlone() bool { return os.Getenv(SQLiteVariable) != "" }

func leaveOutOnSQLiteAlone(t testing.TB, server string) {
	t.Helper()
	if sqliteAlone() {
		t.Skipf("LEFT OUT: %s (%s is set: this run is about SQLite alone)", server, SQLiteVariable)
	}
}

// sqliteParameters are the recommended setup of docs/databases.md for both drivers, of which each
// ignores the other's names, with a longer timeout than an application would use.
const sqliteParameters = "?_pragma=journal_mode(WAL)&_pragma=" + patientGo +
	"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)" +
	"&_journal_mode=WAL&" + patientC + "&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"

// SQLiteDriver returns the name of the database/sql driver with which tests open SQLite.
func SQLiteDriver() string {
	switch choice := os.Getenv(SQLiteVariable); choice {
	case "":
		return "sqlite"
	case "mattn":
		return sqlite.DriverName
	default:
		panic(fmt.Sprintf("%s = %q: must be empty or mattn", SQLiteVariable, choice))
	}
}

// SQLite returns a session on a new, empty SQLite file in a directory of the test. The pool is
// closed when the test ends.
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

// patientGo and patientC are Patience in milliseconds, for the drivers in Go and in C.
const (
	patientGo = "busy_timeout(120000)"
	patientC  = "_busy_timeout=120000"
)

// BusyTimeout returns a DSN of SQLiteDSN with another busy timeout. Its pools wait that long while
// another connection writes.
func BusyTimeout(dsn string, d time.Duration) string {
	return strings.NewReplacer(patientGo, fmt.Sprintf("busy_timeout(%d)", d.Milliseconds()),
		patientC, fmt.Sprintf("_busy_timeout=%d", d.Milliseconds())).Replace(dsn)
}

// OpenSQLite opens one more pool on a file that SQLiteDSN named, like a second process of the same
// inbox. The pool is closed when the test ends.
func OpenSQLite(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return Open(t, sqlite.Dialector{DriverName: SQLiteDriver(), DSN: dsn}, gorm.Config{})
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

// ExampleDB opens an SQLite file for an example, which has no *testing.T. The caller calls closeDB.
func ExampleDB() (db *gorm.DB, closeDB func()) {
	directory, err := os.MkdirTemp("", "inbox")
	if err != nil {
		panic(err)
	}
	db, err = gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + filepath.Join(directory, "inbox.db") +
		sqliteParameters}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		panic(err)
	}
	return db, func() {
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
		_ = os.RemoveAll(directory)
	}
}
