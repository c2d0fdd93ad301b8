package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the driver "sqlite", pure Go: no C compiler needed
)

// sqliteParameters make SQLite durable (FULL), let readers pass the one writer
// (WAL), and writers wait for their turn from the beginning (immediate)
// instead of failing half-way.
const sqliteParameters = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
	"&_pragma=foreign_keys(1)&_txlock=immediate"

// sqlitePrefix tells a SQLite DSN from one of PostgreSQL.
const sqlitePrefix = "file:"

// SQLiteDSN is the DSN of a SQLite file, for Open, which makes the file if there
// is none. Several processes may have it open at once.
func SQLiteDSN(file string) string {
	path := url.URL{Path: filepath.ToSlash(file)} // escaped: # or ? would end it
	return sqlitePrefix + path.EscapedPath() + sqliteParameters
}

// OnSQLite reports whether a DSN leads to a SQLite file.
func OnSQLite(dsn string) bool { return strings.HasPrefix(dsn, sqlitePrefix) }

// Open opens a pool of so many connections at most, which it keeps open, on
// PostgreSQL or, for a DSN of SQLiteDSN, on SQLite. GORM logs nothing: its
// errors are all returned. Close closes the pool.
func Open(dsn string, connections int) (*gorm.DB, error) {
	dialector := postgres.Open(dsn)
	if OnSQLite(dsn) {
		if err := createPrivate(dsn); err != nil {
			return nil, err
		}
		dialector = sqlite.Dialector{DriverName: "sqlite", DSN: dsn}
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	return db, nil
}

// createPrivate makes the file that a DSN of SQLiteDSN names, for this user alone: SQLite
// would let everybody read it. What is there stays as it is.
func createPrivate(dsn string) error {
	path, _, _ := strings.Cut(strings.TrimPrefix(dsn, sqlitePrefix), "?")
	file, err := url.PathUnescape(path)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	created, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = created.Close()
	}
	if err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	return nil
}

// Close closes a database's pool.
func Close(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}
