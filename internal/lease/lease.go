// Package lease lets one of many owners hold a name for a while. A lease is a row of the inbox's locks that belongs to
// its owner until it runs out or is given up, and that the owner renews (contract 5.3, 6.1). Lease is the row, and Hold
// keeps holding it.
package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Store is what a lease needs from an inbox's store.
type Store interface {
	store.Leases
	SingleWriter() bool
}

// Lease is one owner's claim to a name. It is safe for concurrent use.
type Lease struct {
	store   Store
	name    string
	owner   string
	ttl     time.Duration
	timeout time.Duration
	now     func() time.Time

	sem       chan struct{} // held by the goroutine that sends a statement
	released  bool          // guarded by sem
	mayBeOurs bool          // guarded by sem: the lease may be ours, also when the last response was lost
}

// New returns a lease of owner, a UUID, that lasts ttl from each Acquire. No statement takes longer than timeout.
// Nothing is sent yet. The clock is only used on SQLite: PostgreSQL judges leases by its own (contract 3.5).
func New(st Store, name, owner string, ttl, timeout time.Duration, now func() time.Time) *Lease {
	return &Lease{store: st, name: name, owner: owner, ttl: ttl, timeout: timeout, now: now, sem: make(chan struct{}, 1)}
}

// Acquire takes or renews the lease and reports whether the owner holds it now. After an error that is unknown.
func (l *Lease) Acquire(ctx context.Context) (held bool, err error) {
	err = l.serialized(ctx, func(ctx context.Context) error {
		if l.released {
			return nil
		}
		l.mayBeOurs = true
		if held, err = l.store.AcquireLease(ctx, l.name, l.owner, l.ttl, l.now()); err != nil {
			return err
		}
		l.mayBeOurs = held
		return nil
	})
	return held, err
}

// owned reports whether the lease belongs to the owner in the database, and whether it belongs to another owner. It
// waits neither for writers nor for an Acquire.
func (l *Lease) owned(ctx context.Context, timeout time.Duration) (ours, others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	owner, err := l.store.LeaseOwner(ctx, l.name)
	return err == nil && owner == l.owner, err == nil && owner != "" && owner != l.owner, err
}

// Release gives the lease up permanently: Acquire reports false from then on. Release waits for a running Acquire,
// which would otherwise restore the row for an owner that is gone. Without the lease it sends nothing.
func (l *Lease) Release(ctx context.Context) error {
	return l.serialized(ctx, func(ctx context.Context) error {
		l.released = true
		if !l.mayBeOurs {
			return nil
		}
		if err := l.store.ReleaseLease(ctx, l.name, l.owner); err != nil {
			return err
		}
		l.mayBeOurs = false
		return nil
	})
}

func (l *Lease) serialized(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	select {
	case l.sem <- struct{}{}:
		defer func() { <-l.sem }()
		return do(ctx)
	case <-ctx.Done():
		return fmt.Errorf("lease %q: %w", l.name, ctx.Err())
	}
}
