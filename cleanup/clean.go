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

// byTable returns the counts of a run by table, as the metrics show them.
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
	// pauseBetweenBatches leaves the database to processing. Measured: batches of 10,000, half a
	// second apart, cost processing 3 %.
	pauseBetweenBatches = 500 * time.Millisecond
	// pauseAfterReading is the pause after a batch that deleted nothing.
	pauseAfterReading = 50 * time.Millisecond
	// minBatch is the batch size at which halving after timeouts ends.
	minBatch = 100
)

// Clean runs one cleanup now (contract 6.7). It returns what was deleted, even together with an
// error. ErrLeaseHeld means that another worker is cleaning. A *WaitingError means that consumers
// of this process have not caught up: like the runs in the background, Clean deletes nothing until
// they have (contract 6.5).
func (c *Cleaner) Clean(ctx context.Context) (handler.Deleted, error) {
	r := &run{Cleaner: c, limit: c.opts.CleanupBatchSize, owner: lease.New(c.store, lockName,
		uuid.Must(uuid.NewV7()).String(), 3*c.statementTimeout+pauseBetweenBatches, c.statementTimeout, c.clock.Now)}
	if err := c.waiting(); err != nil {
		return r.deleted, fmt.Errorf("cleanup: %w", err)
	}
	if err := c.lease(ctx, r.owner); err != nil {
		return r.deleted, err
	}
	defer c.release(ctx, r.owner)
	began, failed := time.Now(), true // true if it panics
	defer func() { c.measure.Cleaned(ctx, time.Since(began), failed, byTable(r.deleted)...) }()
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		r.now, err = c.store.Clock(ctx, c.clock.Now())
		return err
	})
	if err != nil {
		return r.deleted, fmt.Errorf("cleanup: %w", err)
	}
	err = r.walk(ctx)
	if err == nil || errors.Is(err, ErrArchiveFailed) { // which does not affect pruning
		err = errors.Join(err, r.prune(ctx))
	}
	failed = err != nil
	return r.deleted, err
}

// run is one Clean.
type run struct {
	*Cleaner
	owner   *lease.Lease
	now     time.Time // by the database's clock
	limit   int       // size of a batch; halved after a timeout
	deleted handler.Deleted

	passed   int64 // messages skipped because they were locked or had changed
	refused  error // the first error of the archive function
	refusals int   // batches in a row of which nothing was archived
	givenUp  bool  // too many batches failed entirely
}

// patience is how long a run waits for consumers that were assigned other partitions meanwhile.
// After that the run ends.
const patience = time.Minute

// ready renews the lease and waits for consumers. It must precede every deletion. A lost lease ends
// the run.
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

// batches repeats work until it is done, with pauses between, and halves the limit after a timeout.
// work returns how many rows it deleted.
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

// bounded makes a database call with a deadline.
func (r *run) bounded(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.statementTimeout)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}
