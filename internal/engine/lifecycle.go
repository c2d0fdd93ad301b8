package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

var errStopped = errors.New("stopped while it started")

// Start checks the schema (or migrates), then starts everything, see the root package's Start.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.lifecycle.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another start or stop: %w", err)
	}
	defer e.lifecycle.Release()
	if e.started {
		return nil
	}
	e.mu.Lock()
	e.unwanted = false
	e.mu.Unlock()
	if err := e.prepare(ctx); err != nil {
		return err
	}
	e.sampler.reset()
	e.releaseSenders = e.holdSenders()
	if !e.cfg.Manual {
		if err := e.startAll(ctx); err != nil {
			return errors.Join(err, e.stopAll(ctx))
		}
	}
	e.mu.Lock()
	e.started = !e.unwanted
	e.mu.Unlock()
	if !e.started {
		return errors.Join(errStopped, e.stopAll(ctx))
	}
	e.logStarted()
	return nil
}

// logStarted logs the running channels and handlers, for operators who compare several processes.
func (e *Engine) logStarted() {
	h := e.processor.Health()
	var keys, channels []string
	for registered := range e.cfg.Registry.Handlers() {
		keys = append(keys, registered.Key())
	}
	for _, c := range e.cfg.Channels {
		channels = append(channels, fmt.Sprintf("%s (%s)", c.Name, c.Mode))
	}
	mode := string(h.Mode)
	if e.cfg.Manual {
		mode = "manual"
	}
	e.log.Info("inbox: started", zap.String(telemetry.FieldMode, mode), zap.Strings(telemetry.FieldHandlerKeys, keys),
		zap.String(telemetry.FieldWorker, h.WorkerID), zap.String(telemetry.FieldSchema, e.cfg.Naming.Schema),
		zap.String(telemetry.FieldTablePrefix, e.cfg.Naming.Prefix), zap.Strings(telemetry.FieldChannels, channels))
}

func (e *Engine) startAll(ctx context.Context) error {
	e.logSummaries.Start(e.logLimit.Run)
	if err := e.processor.Start(ctx); err != nil {
		return err
	}
	if len(e.runners) > 0 {
		// The first heartbeat reads the paused handlers. A synchronous channel must not run a paused handler before that.
		if err := e.processor.TakePaused(ctx); err != nil {
			return fmt.Errorf("read paused handlers: %w", err)
		}
	}
	consumers, err := e.newConsumers()
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.consumers = consumers
	e.mu.Unlock()
	// Declare the topics before any cleanup: unread records may need the rows that it would delete.
	if err := e.recordProgress(ctx); err != nil {
		return err
	}
	e.progress.Start(e.recordProgressUntilStopped)
	e.requests.Start(e.reAcceptRequestedUntilStopped)
	e.cancels.Start(e.cancelRequestedUntilStopped)
	e.serving.Start(e.serveRequestedUntilStopped)
	e.rereading.Start(e.readAgainRequestedUntilStopped)
	e.cleaner.Start()
	if err := e.sampler.start(); err != nil {
		return err
	}
	for _, c := range consumers {
		if err := c.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends everything in reverse order, see the root package's Stop.
func (e *Engine) Stop(ctx context.Context) error {
	if err := e.lifecycle.Acquire(ctx); err != nil {
		e.mu.Lock()
		e.unwanted = true
		e.mu.Unlock()
		return fmt.Errorf("wait for another start or stop: %w", err)
	}
	defer e.lifecycle.Release()
	if !e.started {
		return e.processor.Stop(ctx)
	}
	e.mu.Lock()
	e.started = false
	e.mu.Unlock()
	worker := e.processor.Health().WorkerID
	err := e.stopAll(ctx)
	e.log.Info("inbox: stopped", zap.String(telemetry.FieldWorker, worker), zap.Error(err))
	return err
}

// stopAll ends the services that startAll started, and actions that operators have requested. Consumers, cleanup and
// sampling stop concurrently and get a third of the time at most, so that running handlers and the last results have
// time left.
func (e *Engine) stopAll(ctx context.Context) error {
	short, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		short, cancel = context.WithTimeout(ctx, time.Until(deadline)/3)
	}
	defer cancel()
	defer e.again.reopen() // once all has stopped
	stops := []func(context.Context) error{e.again.stop, e.cleaner.Stop, e.sampler.stop}
	for _, loop := range []*routine.Loop{&e.requests, &e.cancels, &e.serving, &e.rereading} {
		stops = append(stops, func(ctx context.Context) error {
			ctx, cancel := withGrace(ctx)
			defer cancel()
			return loop.Stop(ctx)
		})
	}
	e.mu.Lock()
	for _, c := range e.consumers {
		stops = append(stops, c.Stop)
	}
	e.mu.Unlock()
	problems := make([]error, len(stops))
	var stopping sync.WaitGroup
	for i, stop := range stops {
		stopping.Go(func() { problems[i] = stop(short) })
	}
	stopping.Wait()
	problems = append(problems, e.progress.Stop(context.WithoutCancel(ctx))) // it ends at once
	e.recordLastProgress(ctx)
	e.mu.Lock()
	e.consumers = nil
	e.mu.Unlock()
	problems = append(problems, e.processor.Stop(ctx))
	e.releaseSenders()
	problems = append(problems, e.logSummaries.Stop(context.WithoutCancel(ctx)))
	e.logLimit.Flush()
	return errors.Join(problems...)
}

// prepareTimeout bounds a start's database calls where its caller sets no shorter deadline. It is long, because a
// migration may have to wait for other replicas.
const prepareTimeout = 5 * time.Minute

// prepare migrates and checks the database before anything runs on it, and logs what an operator should change.
func (e *Engine) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := e.bounded(ctx, e.checkSettings); err != nil {
		return err
	}
	if e.cfg.Migrate {
		if err := models.Migrate(ctx, e.cfg.DB, e.cfg.Naming, e.cfg.Name); err != nil {
			return err
		}
	}
	if err := e.tables.checkAtStart(ctx); err != nil {
		return err
	}
	e.warnPool()
	e.warnClock()
	e.warnWithoutInbox()
	if err := e.prepareInline(ctx); err != nil {
		return err
	}
	return e.bounded(ctx, e.warnOrphans, e.warnSplitLanes)
}

// bounded makes checks, each of which may take StatementTimeout.
func (e *Engine) bounded(ctx context.Context, checks ...func(context.Context) error) error {
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.Processor.StatementTimeout)
		err := check(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSettings logs wrong settings of the database, or refuses them.
func (e *Engine) checkSettings(ctx context.Context) error {
	ordered := false
	for h := range e.cfg.Registry.Handlers() {
		ordered = ordered || h.Ordered()
	}
	return e.warn(e.store.CheckSettings(ctx, ordered))
}

// checkIsolation logs that transactions which state no isolation level do not run at READ COMMITTED.
func (e *Engine) checkIsolation(ctx context.Context) error {
	return e.warn(e.store.CheckIsolation(ctx, e.cfg.Processor.TxIsolation))
}

func (e *Engine) warn(warnings []store.Warning, err error) error {
	for _, w := range warnings {
		level := zap.WarnLevel
		if w.Notice {
			level = zap.InfoLevel
		}
		e.log.Log(level, w.Message, w.Fields...)
	}
	return err
}

// warnPool logs that handlers' transactions would wait for connections. Every handler may have a slot, so that they may
// be more than Concurrency.
func (e *Engine) warnPool() {
	pool, err := e.cfg.DB.DB()
	if err != nil {
		return // not a *sql.DB, so its limit is unknown
	}
	limit := pool.Stats().MaxOpenConnections
	handlers, want := 0, handlertx.Reserved
	for _, c := range e.cfg.Channels {
		if c.Mode == Inbox {
			handlers += len(c.HandlerKeys)
		} else {
			want += c.PartitionConcurrency
		}
	}
	want += max(e.cfg.Processor.Concurrency, handlers)
	if limit > 0 && limit < want {
		e.log.Warn("inbox: the database pool is smaller than Concurrency and the number of handlers need: handlers' transactions will wait for connections; raise SetMaxOpenConns to wanted",
			zap.Int(telemetry.FieldMaxOpenConnections, limit), zap.Int(telemetry.FieldWanted, want))
	}
}

// farClock is how far an injected clock may differ from the machine's without a warning.
const farClock = time.Minute

// warnClock logs that the option Clock shows another time than the machine. Health compares only the machine's clock
// with the database's, because a test's clock shows what the test has set.
func (e *Engine) warnClock() {
	ahead := e.cfg.Clock.Now().Sub(clock.System{}.Now())
	if !e.cfg.Manual && clock.IsTest(e.cfg.Clock) && ahead.Abs() > farClock {
		e.log.Warn("inbox: option Clock is far from this machine's clock, and due times, retries and retention follow it: leave it out unless this is a test",
			zap.Duration(telemetry.FieldAhead, ahead))
	}
}

// warnOrphans logs the stored handler keys that this process does not register. A legacy key may have been forgotten.
func (e *Engine) warnOrphans(ctx context.Context) error {
	keys, err := e.store.PendingKeys(ctx)
	if err != nil {
		return fmt.Errorf("query pending handler keys: %w", err)
	}
	for _, key := range keys {
		if _, known := e.cfg.Registry.Lookup(key); !known {
			e.log.Warn("inbox: pending statuses of a handler key that this process does not register; a renamed handler needs handler.LegacyKeys",
				zap.String(telemetry.FieldHandlerKey, key))
		}
	}
	return nil
}

// warnSplitLanes logs the ordered handlers whose lanes are split, because the oldest of their keys was dropped too
// early.
func (e *Engine) warnSplitLanes(ctx context.Context) error {
	rules := map[string]store.LaneRule{}
	for h := range e.cfg.Registry.Handlers() {
		if !h.Ordered() {
			continue
		}
		var rule store.LaneRule
		for _, key := range h.Keys() {
			rule.Handlers = append(rule.Handlers, store.LaneHandler(key))
		}
		for _, key := range h.Keys() {
			rules[key] = rule
		}
	}
	keys, err := e.store.KeysWithSplitLanes(ctx, rules)
	if err != nil {
		return fmt.Errorf("query lanes of dropped handler keys: %w", err)
	}
	for _, key := range keys {
		e.log.Error("inbox: lanes of an ordered handler are named by a key that it no longer has: later messages do not wait for those in them and can run out of order; "+
			"add that key again as the last of handler.LegacyKeys, and keep it until nothing accepted under it is pending or poisoned",
			zap.String(telemetry.FieldHandlerKey, key))
	}
	return nil
}
