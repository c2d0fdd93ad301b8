// Package cleanup deletes what an inbox has kept for long enough (contract 6).
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// ErrLeaseHeld says that another worker is cleaning this inbox at the moment.
var ErrLeaseHeld = errors.New("another worker holds the cleanup lease")

// Store is the part of an inbox's store that cleaning needs.
type Store interface {
	lease.Store
	store.Cleaner
	store.Progress
	DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error)
	DeleteRequests(ctx context.Context, before time.Time, limit int) (int64, error)
	DeleteWorkers(ctx context.Context, workerIDs []string) (int64, error)
	MarkReleased(ctx context.Context, workerID string, now time.Time) error
	Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error)
}

// Config configures a Cleaner.
type Config struct {
	Store   Store
	Options Options
	// Handlers are all handlers of the inbox, for their own Retention (contract 6.2).
	Handlers []*handler.Handler
	// EveryHandler applies the inbox's retention also to handlers that only other processes register. An operator with the
	// right to decide that has asked for it. Otherwise these handlers are left to cleaners that know their retentions.
	EveryHandler bool
	// Archive, if not nil, receives rows before they are deleted.
	Archive Archive
	// Record, if not nil, stores how far the consumers of this process have read. Each run calls it first, so that it
	// deletes the rows that they no longer need (contract 6.5).
	Record func(ctx context.Context) error
	// StatementTimeout bounds each database call.
	StatementTimeout time.Duration
	// WorkerAge is how long a worker's row counts after its last heartbeat.
	WorkerAge time.Duration
	Clock     clock.Clock
	Logger    *zap.Logger
	// Instruments measure runs; nil measures nothing.
	Instruments *telemetry.Instruments
}

// Cleaner cleans one inbox, at intervals or by hand. It is safe for concurrent use. Only one
// process of an inbox cleans at a time.
type Cleaner struct {
	cfg    Config
	walked walked
	state  state
	loop   routine.Loop
}

// New makes a Cleaner. It fails only on invalid options.
func New(cfg Config) (*Cleaner, error) {
	if problems := cfg.Options.Validate(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if cfg.Record == nil {
		cfg.Record = func(context.Context) error { return nil }
	}
	cfg.WorkerAge = max(store.DrainKept, cfg.WorkerAge)
	return &Cleaner{cfg: cfg,
		walked: walked{retentions: retentionsOf(cfg.Options, cfg.Handlers), every: cfg.EveryHandler}}, nil
}

// Start cleans once every CleanupInterval, for the first time after one interval. It does nothing if there is nothing
// to clean: no retention of the inbox or of a handler, none of audit rows or rejected messages, and no SweepMarkers.
// Starting twice does nothing. A stopped cleaner can be started again; it begins when the previous run has ended.
func (c *Cleaner) Start() {
	if !c.idle() {
		c.loop.Start(c.run)
	}
}

// idle reports whether nothing needs runs in the background. The rows of dead workers and expired
// leases do not: existing runs, and the processor's sweeps, prune them.
func (c *Cleaner) idle() bool {
	return len(c.walked.lengths) == 0 && !c.cfg.Options.SweepMarkers && c.cfg.Options.AuditRetention == 0 &&
		c.cfg.Options.RejectedRetention == 0
}

// Stop ends cleaning; the running batch is rolled back. It waits for the run to end, at most until ctx ends, and then
// returns an error; call it again to wait longer. After the run has ended, or before Start, it does nothing.
func (c *Cleaner) Stop(ctx context.Context) error {
	if err := c.loop.Stop(ctx); err != nil {
		return fmt.Errorf("stop cleanup: %w", err)
	}
	return nil
}

func (c *Cleaner) run(ctx context.Context) {
	defer c.state.reset()
	for wait := c.cfg.Options.CleanupInterval; routine.Sleep(ctx, wait); {
		wait = c.once(ctx)
	}
}

// once does one run and returns how long to wait until the next.
func (c *Cleaner) once(ctx context.Context) (wait time.Duration) {
	r, err := c.clean(ctx)
	if r.waitingFor == nil && (errors.Is(err, ErrLeaseHeld) || ctx.Err() != nil) {
		return c.cfg.Options.CleanupInterval
	}
	c.ended(r, err)
	if err != nil {
		c.cfg.Logger.Error("inbox: cleanup failed, trying again after its interval", zap.Error(err))
	}
	if r.waitingFor == nil {
		c.cfg.Logger.Info("inbox: cleaned", fieldsOf(r.deleted)...)
		return c.cfg.Options.CleanupInterval
	}
	if r.deleted != (handler.Deleted{}) { // other tables, or before the partition was added
		c.cfg.Logger.Info("inbox: cleaned partly", fieldsOf(r.deleted)...)
	}
	return min(c.cfg.Options.CleanupInterval, recheck)
}

// clean runs once and turns a panic into an error: it must not end the process.
func (c *Cleaner) clean(ctx context.Context) (r *run, err error) {
	r = &run{}
	err = routine.Protect("cleanup", func() (err error) {
		r, err = c.runOnce(ctx)
		return err
	})
	return r, err
}

// lease acquires or renews the lease, which is longer than a batch and the pause after it.
func (c *Cleaner) lease(ctx context.Context, owner *lease.Lease) error {
	held, err := owner.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("cleanup: lease %q: %w", lockName, err)
	}
	if !held {
		return fmt.Errorf("cleanup: lease %q: %w", lockName, ErrLeaseHeld)
	}
	return nil
}

func (c *Cleaner) release(ctx context.Context, owner *lease.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.cfg.StatementTimeout, time.Second))
	defer cancel()
	if err := owner.Release(ctx); err != nil {
		c.cfg.Logger.Warn("inbox: releasing the cleanup lease failed, it expires by itself", zap.Error(err))
	}
}

func fieldsOf(d handler.Deleted) []zap.Field {
	return []zap.Field{zap.Int64(telemetry.FieldMessages, d.Messages), zap.Int64(telemetry.FieldStatuses, d.Statuses),
		zap.Int64(telemetry.FieldUnarchived, d.Unarchived), zap.Int64(telemetry.FieldMarkers, d.Markers),
		zap.Int64(telemetry.FieldAudit, d.Audit), zap.Int64(telemetry.FieldRejected, d.Rejected),
		zap.Int64(telemetry.FieldWorkers, d.Workers), zap.Int64(telemetry.FieldLeases, d.Leases)}
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
	defer func() { c.cfg.Instruments.Cleaned(ctx, time.Since(began), failed, r.deleted) }()
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
	// until replaces now where redeliveries may need the rows. held returns a *WaitingError if until is too late by now;
	// it is nil where redeliveries need nothing. behind is the partition that until comes from; nil if until is now.
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

// requestAge is how long operators can read what came of a request to a worker. One that no worker has carried out may
// have a payload, which must not stay forever.
const requestAge = 8 * 24 * time.Hour

// vanishedAge is how long rows of vanished processes (their leases and workers) stay for inspection.
const vanishedAge = 24 * time.Hour

// prune deletes rows that are not messages or statuses, under the run's lease.
func (r *run) prune(ctx context.Context) error {
	if r.cfg.Options.SweepMarkers && r.waitingFor == nil {
		if err := r.waits(r.pruneMarkers(ctx)); err != nil {
			return err
		}
	}
	return r.pruneOthers(ctx)
}

// pruneMarkers deletes markers that have expired and that no redelivery needs.
func (r *run) pruneMarkers(ctx context.Context) error {
	if err := r.hold(ctx, true); err != nil {
		return err
	}
	defer func() { r.held = nil }()
	return r.pruneRows(ctx, &r.deleted.Markers, r.until, r.cfg.Store.DeleteMarkers)
}

// pruneOthers deletes the rows that no redelivery needs.
func (r *run) pruneOthers(ctx context.Context) error {
	if age := r.cfg.Options.AuditRetention; age > 0 {
		if err := r.pruneRows(ctx, &r.deleted.Audit, r.now.Add(-age), r.cfg.Store.DeleteAudit); err != nil {
			return err
		}
	}
	// Uncounted: the audit says what was requested and what came of it.
	if err := r.pruneRows(ctx, new(int64), r.now.Add(-requestAge), r.cfg.Store.DeleteRequests); err != nil {
		return err
	}
	if age := r.cfg.Options.RejectedRetention; age > 0 {
		if err := r.pruneRows(ctx, &r.deleted.Rejected, r.now.Add(-age), r.cfg.Store.DeleteRejected); err != nil {
			return err
		}
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		r.deleted.Leases, err = r.cfg.Store.DeleteExpiredLeases(ctx, vanishedAge, r.now)
		return err
	})
	if err == nil {
		err = r.bounded(ctx, r.pruneWorkers)
	}
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	return nil
}

// pruneRows deletes in batches until one is smaller than the limit.
func (r *run) pruneRows(ctx context.Context, sum *int64, before time.Time,
	remove func(ctx context.Context, before time.Time, limit int) (int64, error),
) error {
	return r.batches(ctx, func(limit int) (deleted int64, done bool, err error) {
		err = r.bounded(ctx, func(ctx context.Context) error {
			deleted, err = remove(ctx, before, limit)
			return err
		})
		*sum += deleted
		return deleted, deleted < int64(limit), err
	})
}

// pruneWorkers deletes the rows of workers that have been silent for long. Running processors prune dead workers
// themselves. The remaining rows belong to an inbox without a processor, such as one that is now processed by hand.
//
// A worker that neither stopped nor was released is first marked as released. If it were still alive,
// it would come back under a new ID. Its claims need no row: the sweeps of a processor that starts
// later release claims whose worker has none.
func (r *run) pruneWorkers(ctx context.Context) error {
	workers, err := r.cfg.Store.Workers(ctx, r.now)
	if err != nil {
		return err
	}
	var gone, drains []string
	for _, w := range workers {
		if w.SilentFor <= r.cfg.WorkerAge {
			continue
		}
		if !w.Stopped && !w.Released {
			err := r.cfg.Store.MarkReleased(ctx, w.ID, r.now)
			if errors.Is(err, store.ErrWorkerBusy) {
				continue // one of its statements is open
			}
			if err != nil {
				return err
			}
		}
		if w.Drains {
			drains = append(drains, w.ID)
		} else {
			gone = append(gone, w.ID)
		}
	}
	if len(drains) > 0 { // not counted, because no process has vanished
		if _, err := r.cfg.Store.DeleteWorkers(ctx, drains); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	r.deleted.Workers, err = r.cfg.Store.DeleteWorkers(ctx, gone)
	return err
}
