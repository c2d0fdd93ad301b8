// Package cleanup deletes what an inbox has kept for long enough (contract 6).
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/store"
)

// ErrLeaseHeld says that another worker is cleaning this inbox at the moment.
var ErrLeaseHeld = errors.New("another worker holds the cleanup lease")

// Cleaner cleans one inbox, at intervals or by hand. It is safe for
// concurrent use; of all the processes of an inbox one cleans at a time.
type Cleaner struct {
	store            store.Store
	opts             Options
	statementTimeout time.Duration
	clock            clock.Clock
	log              *zap.Logger

	mu   sync.Mutex
	stop context.CancelFunc
	done chan struct{}
}

// New makes a Cleaner. It fails only on invalid options.
func New(st store.Store, opts Options, statementTimeout time.Duration, c clock.Clock, log *zap.Logger) (*Cleaner, error) {
	if problems := opts.Validate(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return &Cleaner{store: st, opts: opts, statementTimeout: statementTimeout, clock: c, log: log}, nil
}

// Start cleans once every CleanupInterval, first after one interval. Without
// Retention there is nothing to do. Starting twice does nothing; a stopped
// cleaner can be started again.
func (c *Cleaner) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil || c.opts.Retention == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.done = cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		c.run(ctx)
	}(c.done)
}

// Stop ends cleaning; the batch under way is rolled back. It returns by ctx's
// end, with an error if the run has not ended then. Stopping twice, or before
// Start, does nothing.
func (c *Cleaner) Stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == nil {
		return nil
	}
	c.stop()
	done := c.done
	c.stop, c.done = nil, nil
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop cleanup: %w", ctx.Err())
	}
}

func (c *Cleaner) run(ctx context.Context) {
	ticker := time.NewTicker(c.opts.CleanupInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		deleted, err := c.clean(ctx)
		switch {
		case err == nil:
			c.log.Info("inbox: cleaned", zap.Int64("messages", deleted.Messages), zap.Int64("statuses", deleted.Statuses))
		case errors.Is(err, ErrLeaseHeld), ctx.Err() != nil:
		default:
			c.log.Error("inbox: cleanup failed, trying again after its interval", zap.Error(err))
		}
	}
}

// Deleted counts what one run deleted.
type Deleted struct {
	Messages int64
	Statuses int64
}

// pauseBetweenBatches leaves the database to the messages: measured, batches
// of 10,000 half a second apart cost processing 3 %.
const pauseBetweenBatches = 500 * time.Millisecond

// minBatch is where halving the batch on timeouts ends.
const minBatch = 100

// Clean runs once now (contract 6.1, 6.4, 6.7). It returns what it deleted,
// also with an error; ErrLeaseHeld means that another worker is at it.
func (c *Cleaner) Clean(ctx context.Context) (Deleted, error) {
	var total Deleted
	if c.opts.Retention == 0 {
		return total, nil
	}
	owner := lease.New(c.store, c.opts.CleanupLockName, uuid.Must(uuid.NewV7()).String(), 3*c.statementTimeout+pauseBetweenBatches, c.statementTimeout, c.clock.Now)
	cutoff := c.clock.Now().Add(-c.opts.Retention)
	batch := c.opts.CleanupBatchSize
	var after store.CleanupCursor
	for {
		if err := c.lease(ctx, owner); err != nil {
			return total, err
		}
		result, err := c.batch(ctx, store.CleanupRequest{Cutoff: cutoff, After: after, Limit: batch})
		switch {
		case err == nil:
			total.Messages += result.Messages
			total.Statuses += result.Statuses
			after = result.Next
		case ctx.Err() == nil && store.IsTransient(err) && batch > minBatch:
			batch = max(batch/2, minBatch)
			c.log.Warn("inbox: cleanup batch timed out or failed, halving it", zap.Int("batch", batch), zap.Error(err))
		default:
			c.release(ctx, owner)
			return total, fmt.Errorf("cleanup: %w", err)
		}
		if result.Done {
			c.release(ctx, owner)
			return total, c.prune(ctx)
		}
		select {
		case <-ctx.Done():
			c.release(ctx, owner)
			return total, fmt.Errorf("cleanup: %w", ctx.Err())
		case <-time.After(pauseBetweenBatches):
		}
	}
}

// expiredLeaseAge is how long an expired lease stays to be looked at.
const expiredLeaseAge = 24 * time.Hour

// prune removes leases that ended long ago, of owners that vanished.
func (c *Cleaner) prune(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.statementTimeout)
	defer cancel()
	if _, err := c.store.DeleteExpiredLeases(ctx, expiredLeaseAge, c.clock.Now()); err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	return nil
}

// clean is Clean whose panic is an error: it must not end the process.
func (c *Cleaner) clean(ctx context.Context) (deleted Deleted, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("cleanup panicked: %v", v)
		}
	}()
	return c.Clean(ctx)
}

func (c *Cleaner) batch(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	ctx, cancel := context.WithTimeout(ctx, c.statementTimeout)
	defer cancel()
	result, err := c.store.Cleanup(ctx, req)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return result, err
}

// lease takes or renews the lease; it outlasts a batch and its pause.
func (c *Cleaner) lease(ctx context.Context, owner *lease.Lease) error {
	held, err := owner.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("cleanup: lease %q: %w", c.opts.CleanupLockName, err)
	}
	if !held {
		return fmt.Errorf("cleanup: lease %q: %w", c.opts.CleanupLockName, ErrLeaseHeld)
	}
	return nil
}

func (c *Cleaner) release(ctx context.Context, owner *lease.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.statementTimeout, time.Second))
	defer cancel()
	if err := owner.Release(ctx); err != nil {
		c.log.Warn("inbox: cleanup lease could not be given up, it runs out by itself", zap.Error(err))
	}
}
