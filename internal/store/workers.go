package store

import (
	"time"
)

// Worker is what a worker says of itself with each heartbeat.
type Worker struct {
	ID          string
	Host        string
	PID         int
	HandlerKeys []string
	// Health is a JSON array of what keeps the process from being healthy.
	Health string
}

// DrainKept is how long a drain's row counts at least: long enough for a program
// that drains once a day.
const DrainKept = 25 * time.Hour

// WorkerState is a worker row as its inbox's other workers see it.
type WorkerState struct {
	Worker
	StartedAt time.Time
	// SilentFor is the time since the last heartbeat.
	SilentFor time.Duration
	Stopped   bool
	// Drains: the row was written by RecordDrain. SQLite's clock may stand
	// still, and then a worker that stopped at once looks the same.
	Drains bool
	// Released: found dead, its claims released.
	Released bool
	// DatabaseRole is the role that it has logged in to PostgreSQL as; empty on SQLite.
	DatabaseRole string
	// Evictable: EvictWorker can end what it leaves open.
	Evictable bool
	// Read is when the row was read, by the database's clock on PostgreSQL;
	// zero on SQLite, which has none of its own.
	Read time.Time
}
