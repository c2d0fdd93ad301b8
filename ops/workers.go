package ops

import (
	"context"
	"errors"
	"time"
)

// AliveFor is how young a worker's last heartbeat must be for it to count as
// alive here: the default of WorkerTimeout. What recovery goes by is each
// inbox's own option.
const AliveFor = 30 * time.Second

// Worker is one process of the inbox.
type Worker struct {
	ID          string
	Host        string
	PID         int
	HandlerKeys []string
	StartedAt   time.Time
	// SilentFor is the time since its last heartbeat, by the database's clock
	// on PostgreSQL.
	SilentFor time.Duration
	Stopped   bool
	// Released: found dead, its claims given to others.
	Released bool
	// Alive: neither of these, and silent for less than AliveFor.
	Alive bool
}

// Handler is a handler key that is known in some way.
type Handler struct {
	HandlerKey string
	// Registered: a living worker lists it, as a key or as a legacy key.
	Registered bool
	Workers    int // living ones that list it
	Paused     bool
	// StoredOnly: statuses are open under it and no living worker lists it.
	StoredOnly bool
}

// Lease is a lock's row.
type Lease struct {
	Name    string
	OwnerID string
	// ExpiresIn is negative if it has run out, by the database's clock on
	// PostgreSQL.
	ExpiresIn time.Duration
}

// Workers lists all worker rows, at most 1,000, the youngest heartbeat first.
func (o *Ops) Workers(ctx context.Context) ([]Worker, error) { return nil, errors.ErrUnsupported }

// Handlers lists the handler keys that living workers list, that are paused, or
// that have open statuses, by key.
func (o *Ops) Handlers(ctx context.Context) ([]Handler, error) { return nil, errors.ErrUnsupported }

// Leases lists the leases of processor and cleanup, at most 1,000, by name.
func (o *Ops) Leases(ctx context.Context) ([]Lease, error) { return nil, errors.ErrUnsupported }
