// Package lease lets one of many owners hold a name for a while: a row of the
// inbox's locks that belongs to its owner until it runs out, is renewed, or is
// given up (contract 5.3, 6.1). Lease is the row, Hold a holder's life with it.
package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Store is what a lease needs of an inbox's store.
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

	turn     chan struct{} // taken by who sends a statement
	released bool          // of who has the turn
	mine     bool          // also: it may be ours, the last answer was lost
}

// New makes a lease of owner, a UUID, that lasts ttl from each Acquire; no
// statement takes longer than timeout. Nothing is sent yet. The clock counts
// on SQLite only: PostgreSQL judges leases by its own (contract 3.5).
func New(st Store, name, owner string, ttl, timeout time.Duration, now func() time.Time) *Lease {
	return &Lease{store: st, name: name, owner: owner, ttl: ttl, timeout: timeout, now: now, turn: make(chan struct{}, 1)}
}

// Acquire takes the lease, or renews it, and reports whether the owner holds
// it now. After an error that is not known.
func (l *Lease) Acquire(ctx context.Context) (held bool, err error) {
	err = l.inTurn(ctx, func(ctx context.Context) error {
		if l.released {
			return nil
		}
		l.mine = true
		if held, err = l.store.AcquireLease(ctx, l.name, l.owner, l.ttl, l.now()); err != nil {
			return err
		}
		l.mine = held
		return nil
	})
	return held, err
}

// owned reports whether the lease is the owner's in the database, and whether
// it is another's. It waits for nobody who writes, nor for an Acquire.
func (l *Lease) owned(ctx context.Context, timeout time.Duration) (ours, others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	owner, err := l.store.LeaseOwner(ctx, l.name)
	return err == nil && owner == l.owner, err == nil && owner != "" && owner != l.owner, err
}

// Release gives the lease up, for good: Acquire reports false from then on. It
// waits for an Acquire that is under way, which would otherwise bring the row
// back for an owner that is gone. Without the lease it does nothing.
func (l *Lease) Release(ctx context.Context) error {
	return l.inTurn(ctx, func(ctx context.Context) error {
		l.released = true
		if !l.mine {
			return nil
		}
		if err := l.store.ReleaseLease(ctx, l.name, l.owner); err != nil {
			return err
		}
		l.mine = false
		return nil
	})
}

func (l *Lease) inTurn(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
		return do(ctx)
	case <-ctx.Done():
		return fmt.Errorf("lease %q: %w", l.name, ctx.Err())
	}
}
