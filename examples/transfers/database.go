package main

import (
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// program is whose data a run's place holds.
var program = scratch.Program{Name: "transfers", File: "bank.db", Open: OpenDatabase}

// callsFile is where the handler notes its calls.
const callsFile = "calls.log"

// connections are enough for the inbox's default Concurrency of 10, and what
// it needs beside its handlers.
const connections = 15

// OpenDatabase opens a pool.
func OpenDatabase(dsn string) (*gorm.DB, error) { return scratch.Open(dsn, connections) }
