package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// sampler queries the backlog in the background, so that neither Health nor the gauges wait for the database.
type sampler struct {
	e          *Engine
	loop       routine.Loop
	unregister func() error // removes the gauges of the current run; nil while stopped

	mu      sync.Mutex
	sample  health.Sample // of the current run
	backlog []processor.Backlog
	workers int
	history []endedCount    // oldest first, over PoisonWindow
	hourly  []attemptCounts // oldest first, over an hour
}

// endedCount is how many statuses this process had ended at a moment.
type endedCount struct {
	at            time.Time
	all, poisoned int64
}

// attemptCounts are the outcomes of each handler's attempts at a moment, by handler key.
type attemptCounts struct {
	at                          time.Time
	completed, failed, poisoned map[string]int64
}

func (s *sampler) now() time.Time { return s.e.cfg.Clock.Now() }

// reset forgets the samples of an earlier run.
func (s *sampler) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sample, s.backlog, s.workers, s.history, s.hourly = health.Sample{Began: s.now()}, nil, 0, nil, nil
	s.recordCounts(s.now())
}

// start registers the gauges and begins to sample.
func (s *sampler) start() error {
	unregister, err := s.e.instruments.ObserveSamples(s.gauges, s.now)
	if err != nil {
		return err
	}
	s.unregister = unregister
	s.loop.Start(s.run)
	return nil
}

// stop ends sampling and removes the gauges. Either may outlast ctx: a driver may be slow to cancel a query, and a
// meter provider removes no gauge while it collects.
func (s *sampler) stop(ctx context.Context) error {
	if s.unregister == nil {
		return nil
	}
	unregister := s.unregister
	s.unregister = nil
	graced, cancel := withGrace(ctx)
	defer cancel()
	var late error
	if s.loop.Stop(graced) != nil {
		late = fmt.Errorf("the backlog query is still running: %w", ctx.Err())
	}
	removed := make(chan error, 1)
	go func() { removed <- unregister() }()
	graced, cancel = withGrace(ctx)
	defer cancel()
	select {
	case err := <-removed:
		if err != nil {
			err = fmt.Errorf("remove the gauges: %w", err)
		}
		return errors.Join(late, err)
	case <-graced.Done():
		return errors.Join(late, fmt.Errorf("the meter provider does not end the gauges: %w", ctx.Err()))
	}
}

// stopGrace is how much longer than its context a stop waits, once for the query and once for the gauges. A query that
// ends at once is then not reported as late.
const stopGrace = 500 * time.Millisecond

// withGrace returns a context that ends stopGrace after ctx has ended, or after this call if ctx ended before.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	graced, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return graced, func() {
		stop()
		cancel()
	}
}

// The pause after a query is at least pauseFactor times as long as the query took, so that sampling makes up a small
// part of the database's work. It is capped by maxPause and maxPauseIntervals, so that health is not judged by an old
// sample.
const (
	pauseFactor       = 20
	maxPause          = time.Minute
	maxPauseIntervals = 100
)

// pauseAfter returns the pause after a query. A failed query spent its time waiting, so it does not lengthen the pause.
func pauseAfter(interval, took time.Duration, failed bool) time.Duration {
	if failed {
		return interval
	}
	return max(interval, min(pauseFactor*took, maxPause, maxPauseIntervals*interval))
}

func (s *sampler) run(ctx context.Context) {
	query := condition.New(s.e.log, s.e.cfg.Clock, zap.WarnLevel, "backlog query",
		"gauges and health have no current samples")
	longRunning := map[string]*condition.Condition{} // by handler key
	for {
		began := time.Now()
		err := s.takeSample(ctx, longRunning)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			query.Begin(nil, err)
		default:
			query.End(nil)
		}
		if !routine.Sleep(ctx, pauseAfter(s.e.cfg.SampleInterval, time.Since(began), err != nil)) {
			return
		}
	}
}

// takeSample queries the backlog and keeps the result, or the error. It also logs the calls that do not return. A
// panic, such as a driver's or the clock's, counts as an error.
func (s *sampler) takeSample(ctx context.Context, longRunning map[string]*condition.Condition) error {
	var backlog []processor.Backlog
	var workers int
	var ahead time.Duration // our clock, of the database's
	now := time.Now()
	err := routine.Protect("the sample", func() (err error) {
		defer func() { now = s.now() }()
		s.logLongRunning(longRunning)
		if backlog, workers, err = s.e.processor.Backlog(ctx); err != nil {
			return err
		}
		return s.e.bounded(ctx, func(ctx context.Context) error {
			ours := s.now()
			now, err := s.e.store.Clock(ctx, ours)
			ahead = ours.Sub(now)
			return err
		})
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordCounts(now)
	if err != nil {
		if store.PoolClosed(err) && !store.PoolClosed(s.sample.Err) {
			s.e.log.Error("inbox: the database's pool is closed and cannot be reopened: stop the inbox before closing the pool, and restart the process",
				zap.Error(err))
		}
		s.sample.Fail(now, err)
		return err
	}
	s.backlog, s.workers = backlog, workers
	sampled := make([]telemetry.HandlerSample, len(backlog))
	for i, b := range backlog {
		oldest := b.OldestDue
		if !oldest.IsZero() {
			oldest = oldest.Add(ahead) // health and metrics compare it with our clock
		}
		sampled[i] = telemetry.HandlerSample{HandlerKey: b.HandlerKey, Due: b.Due, Waiting: b.Waiting,
			Processing: b.Processing, Poisoned: b.Poisoned, Capped: b.Capped, OldestDue: oldest, Paused: b.Paused,
			Broken: b.Broken}
	}
	p := s.e.processor.Health()
	s.sample.Succeed(now, sampled, p.Queued, standsBy(p))
	return nil
}

// report stores the last sample and the counts in h and f.
func (s *sampler) report(h *Health, f *health.Facts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Backlog, h.Workers, h.SampledAt, h.SampleErr = slices.Clone(s.backlog), s.workers, s.sample.At, s.sample.Err
	f.Sample = s.sample
	f.Poisoned, f.Ended = s.poisoned()
}

// logLongRunning logs when calls of a handler do not return, every five minutes, and when all have returned. Each
// handler key has its own condition.
func (s *sampler) logLongRunning(conditions map[string]*condition.Condition) {
	h := s.e.Health()
	late := map[string]bool{}
	for _, r := range h.Reasons {
		if r.Code != health.LongRunning {
			continue
		}
		late[r.HandlerKey] = true
		if conditions[r.HandlerKey] == nil {
			log := s.e.log.With(zap.String(telemetry.FieldHandlerKey, r.HandlerKey))
			conditions[r.HandlerKey] = condition.New(log, s.e.cfg.Clock, zap.WarnLevel, "handler progress",
				"a call does not return")
		}
		conditions[r.HandlerKey].Begin(r.HandlerKey, errors.New(r.Detail),
			zap.String(telemetry.FieldMessageID, r.MessageIDs[0]), zap.String(telemetry.FieldWorker, h.Processor.WorkerID))
	}
	for key, c := range conditions {
		if !late[key] {
			c.End(key)
		}
	}
}

// recordCounts keeps the counters' current values. The caller holds s.mu.
func (s *sampler) recordCounts(now time.Time) {
	counted := s.e.counters.Snapshot()
	s.history = append(s.history, endedCount{now, counted.Processed + counted.Poisoned, counted.Poisoned})
	s.history = dropOlder(s.history, now, s.e.cfg.Limits.PoisonWindow, func(e endedCount) time.Time { return e.at })
	if n := len(s.hourly); n == 0 || now.Sub(s.hourly[n-1].at) >= time.Minute {
		s.hourly = append(s.hourly, s.countAttempts(now))
	}
	s.hourly = dropOlder(s.hourly, now, time.Hour, func(b attemptCounts) time.Time { return b.at })
}

// dropOlder drops the entries before the window, but keeps the last of them: the window's differences start there.
func dropOlder[T any](history []T, now time.Time, window time.Duration, at func(T) time.Time) []T {
	oldest := 0
	for oldest < len(history)-1 && now.Sub(at(history[oldest+1])) >= window {
		oldest++
	}
	return history[oldest:]
}

func (s *sampler) countAttempts(now time.Time) attemptCounts {
	c := s.e.counters
	return attemptCounts{at: now, completed: c.By(telemetry.Processed), failed: c.By(telemetry.Failed),
		poisoned: c.By(telemetry.Poisoned)}
}

// endedByHandler returns the outcomes of attempts since a moment about an hour ago, by handler key.
func (s *sampler) endedByHandler() (since time.Time, ended map[string]ops.Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hourly) == 0 {
		return time.Time{}, nil
	}
	then, now := s.hourly[0], s.countAttempts(s.now())
	ended = map[string]ops.Ended{}
	for key := range now.completed {
		ended[key] = ops.Ended{Completed: now.completed[key] - then.completed[key],
			Failed: now.failed[key] - then.failed[key], Poisoned: now.poisoned[key] - then.poisoned[key]}
	}
	return then.at, ended
}

// poisoned returns how many statuses were poisoned, of how many that ended, within PoisonWindow. A failed attempt that
// is retried ends no status. The caller holds s.mu.
func (s *sampler) poisoned() (poisoned, of int64) {
	if len(s.history) == 0 {
		return 0, 0
	}
	first, counted := s.history[0], s.e.counters.Snapshot()
	poisoned = counted.Poisoned - first.poisoned
	return poisoned, counted.Processed + counted.Poisoned - first.all
}

// gauges returns the gauges' values, from the last sample and from the consumers' memory.
func (s *sampler) gauges() telemetry.Sample {
	h := s.e.Health()
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := telemetry.Sample{Fresh: s.sample.Err == nil && !s.sample.At.IsZero(), Began: s.sample.Began, At: s.sample.At,
		Handlers: s.sample.Handlers, Workers: s.workers, Health: map[string]int{}, Partitions: partitionsOf(h.Consumers),
		OldestRunning: s.e.oldestRunning()}
	for _, code := range health.Codes() {
		shown.Health[code] = 0
	}
	for _, r := range slices.Backward(h.Reasons) { // the worst of each code counts
		shown.Health[r.Code] = 1
		if r.Unhealthy() {
			shown.Health[r.Code] = 2
		}
	}
	return shown
}

func partitionsOf(consumers []kafkaconsumer.Health) []telemetry.PartitionSample {
	var partitions []telemetry.PartitionSample
	for _, c := range consumers {
		for _, p := range c.Partitions {
			partitions = append(partitions, telemetry.PartitionSample{Channel: c.Channel, GroupID: c.GroupID, Topic: p.Topic,
				Partition: p.Partition, Lag: p.Lag, Halted: p.Halted != nil})
		}
	}
	return partitions
}

// timeoutOf returns how long a call of the handler may take, 0 for no limit.
func (e *Engine) timeoutOf(h *handler.Handler) time.Duration {
	return cmp.Or(h.Timeout(), e.cfg.Processor.HandlerTimeout)
}

// oldestRunning returns the start of each handler's oldest running call, zero if none runs.
func (e *Engine) oldestRunning() map[string]time.Time {
	oldest := map[string]time.Time{}
	for h := range e.cfg.Registry.Handlers() {
		oldest[h.Key()] = time.Time{}
	}
	for _, c := range slices.Backward(e.running.Calls()) {
		oldest[c.Handler.Key()] = c.Since
	}
	return oldest
}
