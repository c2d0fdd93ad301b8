package store

import "time"

// Worker is what a worker says of itself with each heartbeat.
type Worker struct {
	ID          string
	Host        string
	PID         int
	HandlerKeys []string
}

// WorkerState is a worker row as its inbox's other workers see it.
type WorkerState struct {
	Worker
	StartedAt time.Time
	// SilentFor is the time since the last heartbeat.
	SilentFor time.Duration
	Stopped   bool
	// Released: found dead, its claims released.
	Released bool
}
