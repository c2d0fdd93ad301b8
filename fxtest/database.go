package fxtest

import (
	"net/url"
	"path/filepath"
	"testing"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the "sqlite" driver, in pure Go

	"github.com/gorm-inbox/inbox/internal/sqlitefile"
)

// sqliteParameters use a WAL file as in production. Only synchronous is off: a test's database need not survive a power
// failure, and waiting for the disk is slow.
const sqliteParameters = "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)" +
	"&_pragma=synchronous(OFF)&_pragma=foreign_keys(1)&_txlock=immediate"

// poolSize is larger than what an inbox with default options needs.
const poolSize = 20

// OpenDB returns a session on a new, empty SQLite file in a temporary directory of the test. It needs no server and no
// C compiler. It is closed when the test ends. Provide it in place of an application's production database.
func OpenDB(t testing.TB) *gorm.DB {
	t.Helper()
	file := filepath.Join(t.TempDir(), "inbox.db")
	if err := sqlitefile.Create(file); err != nil {
		t.Fatalf("fxtest: %v", err)
	}
	// Escape the path: it contains the test's name, in which # or ? would end it.
	path := url.URL{Path: filepath.ToSlash(file)}
	dsn := "file:" + path.EscapedPath() + sqliteParameters
	db, err := gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatalf("fxtest: open SQLite: %v", err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatalf("fxtest: open SQLite: %v", err)
	}
	pool.SetMaxOpenConns(poolSize)
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("fxtest: close SQLite: %v", err)
		}
	})
	return db
}
