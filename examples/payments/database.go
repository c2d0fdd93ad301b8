package main

import (
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// program is whose data a run's place holds.
var program = scratch.Program{Name: "payments", File: "payments.db", Open: OpenDatabase}

// callsFile is where the handler notes its calls.
const callsFile = "calls.log"

// OpenDatabase opens a pool. A process that writes a SQLite file needs one
// connection: its goroutines queue for it, rather than for the file, where
// whoever asks at the right moment comes first.
func OpenDatabase(dsn string) (*gorm.DB, error) {
	if scratch.OnSQLite(dsn) {
		return scratch.Open(dsn, 1)
	}
	return scratch.Open(dsn, consumers)
}
