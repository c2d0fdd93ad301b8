package main

import (
	"fmt"
	"strings"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the driver "sqlite", pure Go: no C compiler needed

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// sqliteParameters make SQLite durable (FULL), let readers pass the one writer
// (WAL), and writers wait for their turn from the beginning (immediate)
// instead of failing half-way.
const sqliteParameters = "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"

// program is whose data a run's place holds.
var program = scratch.Program{Name: "payments", File: "payments.db", SQLite: SQLiteDSN, Open: OpenDatabase}

// callsFile is where the handler notes its calls.
const callsFile = "calls.log"

// SQLiteDSN is the DSN of a SQLite file.
func SQLiteDSN(file string) string { return "file:" + file + sqliteParameters }

// OpenDatabase opens a pool on PostgreSQL, or on SQLite for a DSN that begins
// with "file:". GORM logs nothing: its errors are all returned. A process that
// writes a SQLite file needs one connection: its goroutines queue for it, rather
// than for the file, where whoever asks at the right moment comes first.
func OpenDatabase(dsn string) (*gorm.DB, error) {
	dialector, connections := postgres.Open(dsn), consumers
	if strings.HasPrefix(dsn, "file:") {
		dialector, connections = sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, 1
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
