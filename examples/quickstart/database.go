package main

import (
	"fmt"
	"strings"

	"go.uber.org/fx"
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
const sqliteParameters = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
	"&_pragma=foreign_keys(1)&_txlock=immediate"

// program is whose data a run's place holds.
var program = scratch.Program{Name: "quickstart", File: "orders.db", SQLite: SQLiteDSN, Open: OpenDatabase}

// SQLiteDSN is the DSN of a SQLite file.
func SQLiteDSN(file string) string { return "file:" + file + sqliteParameters }

// OpenDatabase opens PostgreSQL, or SQLite for a DSN that begins with "file:".
// GORM logs nothing: its errors are all returned.
func OpenDatabase(dsn string) (*gorm.DB, error) {
	dialector := postgres.Open(dsn)
	if strings.HasPrefix(dsn, "file:") {
		dialector = sqlite.Dialector{DriverName: "sqlite", DSN: dsn}
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}

// OpenServiceDatabase is the service's constructor of its *gorm.DB: a pool
// large enough for its handlers, closed when the application has stopped, and
// the application's own tables.
func OpenServiceDatabase(cfg Config, lc fx.Lifecycle) (*gorm.DB, error) {
	db, err := OpenDatabase(cfg.Database)
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(20)
	pool.SetMaxIdleConns(20)
	lc.Append(fx.StopHook(pool.Close))
	if err := db.AutoMigrate(&RevenueEntry{}); err != nil {
		return nil, fmt.Errorf("create the application's tables: %w", err)
	}
	return db, nil
}
