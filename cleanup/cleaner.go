// Package cleanup deletes what an inbox has kept for long enough (contract 6).
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

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
