package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// sampler reads the backlog in the background, for Health and for the
// gauges: neither waits for the database (contract 11.5, 12).
type sampler struct {
	ib *Inbox

	// Of the current run; of the goroutine that starts and stops it.
	cancel context.CancelFunc
	done   chan struct{}
	hide   func() error // ends what gauges show

	mu      sync.Mutex
	began   time.Time // of the current run
	at      time.Time // of the last sample; zero if there is none of this run
	err     error     // of the last try; nil if it is that sample
	since   time.Time // when tries began to fail
	backlog []processor.Backlog
	workers int
	// dueSince is since when each sample has had something due that can be
	// claimed: not of a handler that is paused or whose circuit is open.
	dueSince time.Time
	history  []ended // oldest first, as far back as the window reaches
	hour     []byKey // likewise, an hour
}

// ended is how many statuses had ended at a moment.
type ended struct {
	at            time.Time
	all, poisoned int64
}

// byKey is what each handler's attempts had come to at a moment.
type byKey struct {
	at                          time.Time
	completed, failed, poisoned map[string]int64
}

func (s *sampler) now() time.Time { return s.ib.cfg.clock.Now() }

// begin forgets an earlier run.
func (s *sampler) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.at, s.since, s.dueSince = s.now(), time.Time{}, time.Time{}, time.Time{}
	s.err, s.backlog, s.workers, s.history, s.hour = nil, nil, 0, nil, nil
	s.remember(s.now())
}

// start begins to sample. It shows what it sees as gauges.
func (s *sampler) start() error {
	hide, err := s.ib.instruments.ObserveSamples(s.sample, s.now)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.done, s.hide = cancel, make(chan struct{}), hide
	go s.run(ctx, s.done)
	return nil
}

// stopGrace is what a stop whose own time is over gives each of the two things it
// waits for: what ends at once is not late.
const stopGrace = 500 * time.Millisecond

// stop ends it. A driver may take its time to give a statement up.
func (s *sampler) stop(ctx context.Context) error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.cancel = nil
	var late error
	if !endsBy(ctx, s.done) {
		late = fmt.Errorf("a look at the backlog does not end: %w", ctx.Err())
	}
	hidden, err := make(chan struct{}), error(nil)
	go func() { defer close(hidden); err = s.hide() }() // ends when the provider lets it, which waits for what it collects
	if !endsBy(ctx, hidden) {
		return errors.Join(late, fmt.Errorf("the meter provider does not end the gauges: %w", ctx.Err()))
	}
	if err != nil {
		err = fmt.Errorf("end the gauges: %w", err)
	}
	return errors.Join(late, err)
}

// endsBy waits for done until stopGrace after ctx has ended.
func endsBy(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// A sample waits at least rest times as long as the one before it took, so that
// samples never make up more than a small part of the database's work; but for no
// more than longestRest or mostIntervals, so that health does not go by what is
// long past.
const (
	rest          = 20
	longestRest   = time.Minute
	mostIntervals = 100
)

// restAfter is the time between a sample and the next one. What a failed one took
// was spent waiting.
func restAfter(interval, took time.Duration, failed bool) time.Duration {
	if failed {
		return interval
	}
	return max(interval, min(rest*took, longestRest, mostIntervals*interval))
}

func (s *sampler) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	longRunning := map[string]*condition.Condition{} // by handler key
	for {
		began := time.Now()
		failed := s.takeSample(ctx, longRunning) != nil
		if !routine.Sleep(ctx, restAfter(s.ib.cfg.options.SampleInterval, time.Since(began), failed)) {
			return
		}
	}
}

// takeSample takes one sample, and returns why it could not. A panic, a driver's
// perhaps, is a failed one. It also logs calls that do not return.
func (s *sampler) takeSample(ctx context.Context, longRunning map[string]*condition.Condition) error {
	var (
		backlog []processor.Backlog
		workers int
		err     error
	)
	err = routine.Protect("the sample", func() (err error) {
		s.logLongRunning(longRunning)
		backlog, workers, err = s.ib.processor.Backlog(ctx)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.remember(now)
	if err != nil {
		if store.PoolClosed(err) && !store.PoolClosed(s.err) {
			s.ib.log.Error("inbox: the database's pool is closed and never comes back: stop the inbox before closing the pool, and restart the process", zap.Error(err))
		}
		if s.err == nil {
			s.since = now
			s.ib.log.Warn("inbox: sampling the backlog failed, gauges and health do not show it", zap.Error(err))
		}
		s.err = err
		s.dueSince = time.Time{} // who knows
		return err
	}
	if s.err != nil {
		s.ib.log.Info("inbox: sampling the backlog recovered")
	}
	s.at, s.err, s.backlog, s.workers = now, nil, backlog, workers
	p := s.ib.processor.Health()
	due := p.Queued > 0
	for _, b := range backlog {
		due = due || b.Due > 0 && !b.Paused && !b.Broken
	}
	// Whoever stands by owes nothing, nor for the time before it takes over.
	due = due && (p.Mode != processor.ModeExclusive || p.HoldsLock)
	switch {
	case !due:
		s.dueSince = time.Time{}
	case s.dueSince.IsZero():
		s.dueSince = now
	}
	return nil
}

// poisonWindow is the time that HealthMaxPoisonRate is about: five minutes, or a sample's
// interval where that is longer.
func poisonWindow(o Options) time.Duration { return max(5*time.Minute, o.SampleInterval) }

// remember notes what has ended until now. The lock is held.
func (s *sampler) remember(now time.Time) {
	counted := s.ib.counters.Snapshot()
	s.history = append(s.history, ended{now, counted.Processed + counted.Poisoned, counted.Poisoned})
	s.history = within(s.history, now, poisonWindow(s.ib.cfg.options), func(e ended) time.Time { return e.at })
	if n := len(s.hour); n == 0 || now.Sub(s.hour[n-1].at) >= time.Minute {
		s.hour = append(s.hour, s.counted(now))
	}
	s.hour = within(s.hour, now, time.Hour, func(b byKey) time.Time { return b.at })
}

// within drops what is older than the last that is older than the window.
func within[T any](history []T, now time.Time, window time.Duration, at func(T) time.Time) []T {
	oldest := 0
	for oldest < len(history)-1 && now.Sub(at(history[oldest+1])) >= window {
		oldest++
	}
	return history[oldest:]
}

func (s *sampler) counted(now time.Time) byKey {
	c := s.ib.counters
	return byKey{now, c.ByHandler(telemetry.Processed), c.ByHandler(telemetry.Failed), c.ByHandler(telemetry.Poisoned)}
}

// ended is what attempts have come to since a moment about an hour ago, by
// handler key.
func (s *sampler) ended() (since time.Time, of map[string]ops.Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hour) == 0 {
		return time.Time{}, nil
	}
	then, now := s.hour[0], s.counted(s.now())
	of = map[string]ops.Ended{}
	for key := range now.completed {
		of[key] = ops.Ended{Completed: now.completed[key] - then.completed[key], Failed: now.failed[key] - then.failed[key],
			Poisoned: now.poisoned[key] - then.poisoned[key]}
	}
	return then.at, of
}

// poisoned is how many statuses were poisoned of those that ended within the
// window. An attempt that failed and is repeated has ended none. The lock is held.
func (s *sampler) poisoned() (poisoned, of int64) {
	if len(s.history) == 0 {
		return 0, 0
	}
	first, counted := s.history[0], s.ib.counters.Snapshot()
	poisoned = counted.Poisoned - first.poisoned
	return poisoned, counted.Processed + counted.Poisoned - first.all
}

// sample is what gauges show. Consumers know their partitions by heart.
func (s *sampler) sample() telemetry.Sample {
	health := s.ib.Health()
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := telemetry.Sample{Fresh: s.err == nil && !s.at.IsZero(), Began: s.began, At: s.at, Workers: s.workers,
		Health: health.State.rank(), Partitions: partitionsOf(health.Consumers),
		OldestRunning: s.ib.oldestRunning()}
	for _, b := range s.backlog {
		shown.Handlers = append(shown.Handlers, telemetry.HandlerSample{HandlerKey: b.HandlerKey, Due: b.Due,
			Waiting: b.Waiting, Processing: b.Processing,
			Poisoned: b.Poisoned, Capped: b.Capped, OldestDue: b.OldestDue, Paused: b.Paused})
	}
	return shown
}

func partitionsOf(consumers []kafkaconsumer.Health) []telemetry.PartitionSample {
	var partitions []telemetry.PartitionSample
	for _, c := range consumers {
		for _, p := range c.Partitions {
			partitions = append(partitions, telemetry.PartitionSample{Channel: c.Channel, GroupID: c.GroupID, Topic: p.Topic,
				Partition: p.Partition,
				Lag:       p.Lag, Halted: p.Halted != nil})
		}
	}
	return partitions
}
