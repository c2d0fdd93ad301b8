package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// byTable is what metrics tell apart.
func byTable(d handler.Deleted) []telemetry.Deletions {
	return []telemetry.Deletions{{Table: "messages", Rows: d.Messages}, {Table: "statuses", Rows: d.Statuses},
		{Table: "markers", Rows: d.Markers},
		{Table: "audit", Rows: d.Audit}, {Table: "rejected", Rows: d.Rejected}, {Table: "workers", Rows: d.Workers},
		{Table: "leases", Rows: d.Leases}}
}

func fieldsOf(d handler.Deleted) []zap.Field {
	return []zap.Field{
		zap.Int64(telemetry.FieldMessages, d.Messages), zap.Int64(telemetry.FieldStatuses, d.Statuses),
		zap.Int64(telemetry.FieldUnarchived, d.Unarchived), zap.Int64(telemetry.FieldMarkers, d.Markers),
		zap.Int64(telemetry.FieldAudit, d.Audit), zap.Int64(telemetry.FieldRejected, d.Rejected),
		zap.Int64(telemetry.FieldWorkers, d.Workers), zap.Int64(telemetry.FieldLeases, d.Leases),
	}
}

const (
	// pauseBetweenBatches leaves the database to the messages: measured,
	// batches of 10,000 half a second apart cost processing 3 %.
	pauseBetweenBatches = 500 * time.Millisecond
	// pauseAfterReading is the pause after a batch that deleted nothing.
	pauseAfterReading = 50 * time.Millisecond
	// minBatch is where halving the batch on timeouts ends.
	minBatch = 100
)

// Clean runs once now (contract 6.7). It returns what it deleted, also with an
// error. ErrLeaseHeld means that another worker is at it, a *WaitingError that
// consumers of this process have not caught up: it deletes nothing until they
// have, as the runs in the background do not (contract 6.5).
func (c *Cleaner) Clean(ctx context.Context) (handler.Deleted, error) {
	r := &run{Cleaner: c, now: c.clock.Now(), limit: c.opts.CleanupBatchSize, owner: lease.New(c.store, lockName,
		uuid.Must(uuid.NewV7()).String(), 3*c.statementTimeout+pauseBetweenBatches, c.statementTimeout, c.clock.Now)}
	if err := c.waiting(); err != nil {
		return r.deleted, fmt.Errorf("cleanup: %w", err)
	}
	if err := c.lease(ctx, r.owner); err != nil {
		return r.deleted, err
	}
	defer c.release(ctx, r.owner)
	began, failed := time.Now(), true // also if it panics
	defer func() { c.measure.Cleaned(ctx, time.Since(began), failed, byTable(r.deleted)...) }()
	err := r.walk(ctx)
	if err == nil || errors.Is(err, ErrArchiveFailed) { // which concerns nothing else
		err = errors.Join(err, r.prune(ctx))
	}
	failed = err != nil
	return r.deleted, err
}

// run is one Clean.
type run struct {
	*Cleaner
	owner   *lease.Lease
	now     time.Time
	limit   int // of a batch; halved on timeouts
	deleted handler.Deleted

	passed   int64 // messages that were locked or changed
	refused  error // the first error of the archive function
	refusals int   // hand-overs in a row of which nothing was archived
	givenUp  bool  // too many did
}

// patience is how long a run under way waits for consumers that got other
// partitions meanwhile, before it ends.
const patience = time.Minute

// ready keeps the lease and waits for consumers; it comes before whatever
// deletes. A lost lease ends the run.
func (r *run) ready(ctx context.Context) error {
	for began := time.Now(); ; {
		if err := r.lease(ctx, r.owner); err != nil {
			return err
		}
		err := r.waiting()
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("cleanup: %w", err)
		}
		if !routine.Sleep(ctx, pauseBetweenBatches) {
			return fmt.Errorf("cleanup: %w", ctx.Err())
		}
	}
}

// batches repeats work until it is done, with pauses, and with half the limit
// after a timeout. Work says how much it deleted.
func (r *run) batches(ctx context.Context, work func(limit int) (deleted int64, done bool, err error)) error {
	for {
		if err := r.ready(ctx); err != nil {
			return err
		}
		rest := pauseBetweenBatches
		deleted, done, err := work(r.limit)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			if deleted == 0 {
				rest = pauseAfterReading
			}
		case ctx.Err() == nil && store.IsTransient(err) && r.limit > minBatch:
			r.limit = max(r.limit/2, minBatch)
			r.log.Warn("inbox: cleanup batch timed out or failed, halving it", zap.Int(telemetry.FieldBatch, r.limit),
				zap.Error(err))
		default:
			return fmt.Errorf("cleanup: %w", err)
		}
		if !routine.Sleep(ctx, rest) {
			return fmt.Errorf("cleanup: %w", ctx.Err())
		}
	}
}

// bounded gives a database call its deadline.
func (r *run) bounded(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.statementTimeout)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}
