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
		{Table: "markers", Rows: d.Markers}, {Table: "audit", Rows: d.Audit}, {Table: "rejected", Rows: d.Rejected},
		{Table: "workers", Rows: d.Workers}, {Table: "leases", Rows: d.Leases}}
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
// error. ErrLeaseHeld means that another worker is cleaning. A *WaitingError means that a partition
// has never been read to its end: nothing is deleted then that its records may need (contract 6.5).
func (c *Cleaner) Clean(ctx context.Context) (handler.Deleted, error) {
	r, err := c.runOnce(ctx)
	if r.waitingFor != nil {
		waiting := *r.waitingFor
		waiting.Err = err
		err = fmt.Errorf("cleanup: %w", &waiting)
	}
	return r.deleted, err
}

// runOnce does one run. If it has to wait for a partition, the run says so, and that is no error.
func (c *Cleaner) runOnce(ctx context.Context) (*run, error) {
	timeout := c.cfg.StatementTimeout
	r := &run{Cleaner: c, limit: c.cfg.Options.CleanupBatchSize, owner: lease.New(c.cfg.Store, lockName,
		uuid.Must(uuid.NewV7()).String(), 3*timeout+pauseBetweenBatches, timeout, c.cfg.Clock.Now)}
	if err := c.lease(ctx, r.owner); err != nil {
		if !errors.Is(err, ErrLeaseHeld) {
			c.release(ctx, r.owner) // the database may have given it to us: a stop may cut its response off
		}
		return r, err
	}
	defer c.release(ctx, r.owner)
	began, failed := time.Now(), true // true if it panics
	defer func() { c.cfg.Instruments.Cleaned(ctx, time.Since(began), failed, byTable(r.deleted)...) }()
	if err := r.begin(ctx); err != nil {
		return r, fmt.Errorf("cleanup: %w", err)
	}
	err := r.walk(ctx)
	if err == nil || errors.Is(err, ErrArchiveFailed) { // which does not affect pruning
		err = errors.Join(err, r.prune(ctx))
	}
	failed = err != nil
	return r, err
}

// waits returns err, but stores a *WaitingError in the run and returns nil for it.
func (r *run) waits(err error) error {
	if errors.As(err, &r.waitingFor) {
		return nil
	}
	return err
}

// run is one Clean.
type run struct {
	*Cleaner
	owner *lease.Lease
	now   time.Time // by the database's clock
	local time.Time // the same moment by the injected clock
	// until replaces now where redeliveries may need the rows. held returns a *WaitingError if until is too late by
	// now; it is nil where redeliveries need nothing. behind is the partition that until comes from; nil if until is
	// now.
	until  time.Time
	held   func(ctx context.Context) error
	behind *WaitingError
	// waitingFor is the partition whose redeliveries may need the messages or markers that the run keeps; nil if there
	// is none.
	waitingFor *WaitingError
	limit      int // size of a batch; halved after a timeout
	deleted    handler.Deleted

	passed   int64 // messages skipped because they were locked or had changed
	refused  error // the first error of the archive function
	refusals int   // batches in a row of which nothing was archived
	givenUp  bool  // too many batches failed entirely
}

// begin stores how far this process's consumers have read, forgets partitions that were removed long ago, and reads the
// database's clock.
func (r *run) begin(ctx context.Context) error {
	err := r.bounded(ctx, r.cfg.Record)
	if err == nil {
		err = r.bounded(ctx, r.forget)
	}
	if err == nil {
		err = r.bounded(ctx, func(ctx context.Context) (err error) {
			r.local = r.cfg.Clock.Now()
			r.now, err = r.cfg.Store.Clock(ctx, r.local)
			return err
		})
	}
	return err
}

// ready renews the lease. It must precede every deletion. A lost lease ends the run, and so does a new partition that
// may need the rows that the run deletes.
func (r *run) ready(ctx context.Context) error {
	if err := r.lease(ctx, r.owner); err != nil || r.held == nil {
		return err
	}
	if err := r.held(ctx); err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	return nil
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
			r.cfg.Logger.Warn("inbox: cleanup batch timed out or failed, halving it", zap.Int(telemetry.FieldBatch, r.limit),
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
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}
