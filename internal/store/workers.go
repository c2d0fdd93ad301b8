package store

import (
	"time"
)

// Worker is a worker's report about itself with each heartbeat.
type Worker struct {
	ID   string
	Host string
	PID  int
	// HandlerKeys are all keys that the program declares, with legacy keys. Namespaces has the namespace of message IDs
	// in which it declares each.
	HandlerKeys []string
	Namespaces  map[string]string
	// Health is a JSON array of the reasons why the process is not healthy.
	Health string
	// Consumers is a JSON array of the state of the process's consumers. Workers does not return it.
	Consumers string
	// Settings is a JSON object, or empty. Only the first heartbeat of an ID stores it. Workers does not return it.
	Settings string
}

// DrainKept is the minimum time for which a drain's row counts: long enough for a program that drains once a week.
const DrainKept = 8 * 24 * time.Hour

// WorkerState is a worker row as its inbox's other workers see it.
type WorkerState struct {
	Worker
	StartedAt time.Time
	// SilentFor is the time since the last heartbeat.
	SilentFor time.Duration
	Stopped   bool
	// Drains means that RecordDrain wrote the row. SQLite's clock may stand still, and then a worker that stopped at
	// once looks the same.
	Drains bool
	// Released means that the worker was declared dead and its claims were released.
	Released bool
	// DatabaseRole is the role as which it has logged in to the server, empty on SQLite.
	DatabaseRole string
	// Evictable means that EvictHolders can end the transactions it leaves open.
	Evictable bool
	// Read is when the row was read, by the server's clock. It is zero on SQLite, which has no clock.
	Read time.Time
}
