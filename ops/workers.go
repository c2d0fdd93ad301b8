package ops

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
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
func (o *Ops) Workers(ctx context.Context) ([]Worker, error) {
	ctx, cancel := o.within(ctx)
	defer cancel()
	stored, err := o.store.Workers(ctx, o.clock.Now())
	if err != nil {
		return nil, err
	}
	workers := make([]Worker, len(stored))
	for i, w := range stored {
		workers[i] = Worker{ID: w.ID, Host: w.Host, PID: w.PID, HandlerKeys: w.HandlerKeys, StartedAt: w.StartedAt, SilentFor: w.SilentFor,
			Stopped: w.Stopped, Released: w.Released, Alive: !w.Stopped && !w.Released && w.SilentFor < AliveFor}
	}
	slices.SortStableFunc(workers, func(a, b Worker) int { return cmp.Compare(a.SilentFor, b.SilentFor) })
	return workers[:min(len(workers), mostListed)], nil
}

// mostListed bounds lists of tables that have a few rows.
const mostListed = 1000

// Handlers lists the handler keys that living workers list, that are paused, or
// that have open statuses, by key.
func (o *Ops) Handlers(ctx context.Context) ([]Handler, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	handlers, _, err := o.handlers(ctx)
	return handlers, err
}

func (o *Ops) handlers(ctx context.Context) ([]Handler, []Worker, error) {
	workers, err := o.Workers(ctx)
	if err != nil {
		return nil, nil, err
	}
	paused, err := look(ctx, o, pausedKeys, store.Value[string], mostListed)
	if err != nil {
		return nil, nil, fmt.Errorf("list paused handlers: %w", err)
	}
	open, err := o.allOpenKeys(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list handlers with open statuses: %w", err)
	}
	listing := map[string]int{}
	for _, w := range workers {
		if !w.Alive {
			continue
		}
		for _, key := range w.HandlerKeys {
			listing[key]++
		}
	}
	var handlers []Handler
	for _, key := range distinct(slices.Concat(slices.Collect(maps.Keys(listing)), paused, open)) {
		handlers = append(handlers, Handler{HandlerKey: key, Registered: listing[key] > 0, Workers: listing[key],
			Paused: slices.Contains(paused, key), StoredOnly: listing[key] == 0 && slices.Contains(open, key)})
	}
	return handlers, workers, nil
}

// All of a table that has a row for each handler ever paused.
const pausedKeys = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key LIMIT $1`

// Leases lists the leases of processor and cleanup, at most 1,000, by name.
func (o *Ops) Leases(ctx context.Context) ([]Lease, error) {
	leases, err := look(ctx, o, leases, func(rows *sql.Rows, l *Lease) error {
		var expires, now store.Stamp
		err := rows.Scan(&l.Name, &l.OwnerID, &expires, &now)
		if o.sqlite {
			now.Time = o.clock.Now()
		}
		l.ExpiresIn = expires.Sub(now.Time)
		return err
	}, mostListed)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return leases, nil
}

// All of a table that has a few rows.
const leases = `SELECT name, CAST(owner_id AS text), expires_at, {clock} FROM {locks} ORDER BY name LIMIT $1`
