package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/settings"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// SweepOptions configure a Sweeper. Start from DefaultSweepOptions: zero values are values.
type SweepOptions struct {
	// Interval is the time between sweeps; the first comes one interval after Start. Do not shorten it to forget
	// sooner: Retention does that. Default 1 h.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// Timeout bounds each call of the store's Cleanup; one that has made progress in it is called again at once. Do not
	// set it below the time of one batch of the store: nothing would ever be forgotten. Default 1 m.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Clock replaces the system clock by which retention is judged, for tests. Do not use it to shift time in
	// production. Interval goes by real time. Default nil, the system's.
	Clock Clock `yaml:"-" env:"-"`
	// Logger is the zap logger; without it nothing is logged, failures included: do not leave it out in production.
	Logger *zap.Logger `yaml:"-" env:"-"`
}

// DefaultSweepOptions returns the defaults.
func DefaultSweepOptions() SweepOptions {
	return SweepOptions{Interval: time.Hour, Timeout: time.Minute}
}

// Validate reports every option that is out of range, joined, each by name with its value and what is allowed.
func (o SweepOptions) Validate() error {
	if o.Interval == 0 && o.Timeout == 0 {
		return errors.New("options are zero: start from idempotent.DefaultSweepOptions()")
	}
	var problems []error
	if o.Interval <= 0 {
		problems = append(problems, fmt.Errorf("option Interval = %s: must be more than 0", o.Interval))
	}
	if o.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("option Timeout = %s: must be more than 0", o.Timeout))
	}
	return errors.Join(problems...)
}

// Sweeper makes a store forget keys after their retention, at intervals (contract 8.4). Do not use it beside an inbox
// with SweepMarkers on the same tables, or for stores that forget by themselves: there is nothing left to do. Several
// processes may sweep one store. It is safe for concurrent use.
type Sweeper struct {
	opts  SweepOptions
	store Store
	clock Clock
	log   *zap.Logger
	loop  routine.Loop
}

// NewSweeper makes a Sweeper of store. Each function of configure may change the options, which start as
// DefaultSweepOptions. The error joins all that is wrong: a nil store, options out of range.
func NewSweeper(store Store, configure ...func(o *SweepOptions)) (*Sweeper, error) {
	o := settings.With(DefaultSweepOptions(), configure)
	err := o.Validate()
	if isNil(store) {
		err = errors.Join(err, errors.New("the store is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("idempotent sweeper: %w", err)
	}
	s := &Sweeper{opts: o, store: store, clock: o.Clock, log: logging.WithoutStacks(o.Logger)}
	if s.clock == nil {
		s.clock = clock.System{}
	}
	return s, nil
}

// Start sweeps once every Interval until Stop. Starting twice does nothing. A stopped sweeper can be started again; it
// begins when the previous sweep has ended.
func (s *Sweeper) Start() { s.loop.Start(s.run) }

// Stop ends sweeping; a running sweep is cancelled. It waits for the sweep to end, at most until ctx ends, and then
// returns an error; call it again to wait longer. After the sweep has ended, or before Start, it does nothing.
func (s *Sweeper) Stop(ctx context.Context) error {
	if err := s.loop.Stop(ctx); err != nil {
		return fmt.Errorf("stop idempotent sweeper: %w", err)
	}
	return nil
}

func (s *Sweeper) run(ctx context.Context) {
	sweeping := condition.New(s.log, s.clock, zap.ErrorLevel, "sweep of processed messages",
		"it is tried again after its interval")
	for routine.Sleep(ctx, s.opts.Interval) {
		forgotten, err := s.Sweep(ctx)
		if ctx.Err() != nil {
			return
		}
		markers := zap.Int64(telemetry.FieldMarkers, forgotten)
		if err != nil {
			sweeping.Begin(nil, err, markers)
		} else {
			sweeping.End(nil)
			s.log.Info("inbox: swept processed messages", markers)
		}
	}
}

// Sweep forgets the expired keys now, and returns how many. It works without Start.
func (s *Sweeper) Sweep(ctx context.Context) (forgotten int64, err error) {
	now := s.clock.Now()
	for {
		n, err := s.once(ctx, now)
		forgotten += n
		// The call reached its own deadline after some progress. That is not a fault.
		if n > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return forgotten, fmt.Errorf("sweep processed messages: %w", err)
		}
		return forgotten, nil
	}
}

// once calls Cleanup once and turns a panic into an error: it must not end the process.
func (s *Sweeper) once(ctx context.Context, now time.Time) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err = routine.Protect("the store", func() (err error) {
		n, err = s.store.Cleanup(ctx, now)
		return err
	})
	return n, err
}
