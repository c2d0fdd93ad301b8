package main

import (
	"fmt"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// program is whose data a run's place holds.
var program = scratch.Program{Name: "quickstart", File: "orders.db", Open: OpenDatabase}

// OpenDatabase opens a pool large enough for the service's handlers.
func OpenDatabase(dsn string) (*gorm.DB, error) { return scratch.Open(dsn, 20) }

// OpenServiceDatabase is the service's constructor of its *gorm.DB: a pool
// that is closed when the application has stopped, and the application's own
// tables.
func OpenServiceDatabase(cfg Config, lc fx.Lifecycle) (*gorm.DB, error) {
	db, err := OpenDatabase(cfg.Database)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(func() error { return scratch.Close(db) }))
	if err := db.AutoMigrate(&RevenueEntry{}); err != nil {
		return nil, fmt.Errorf("create the application's tables: %w", err)
	}
	return db, nil
}
