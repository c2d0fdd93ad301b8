package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Start checks the schema (or migrates), then starts processor, cleanup and consumers, in this order (contract 10.5).
// They do not end with ctx. If Start fails, nothing is left running. It fails while the database cannot be reached, but
// not while a broker cannot; the process's supervisor should restart it. Starting twice does nothing; a stopped inbox
// can be started again.
func (ib *Inbox) Start(ctx context.Context) error {
	ib.lifecycle.Lock()
	defer ib.lifecycle.Unlock()
	if ib.started {
		return nil
	}
	if err := ib.prepare(ctx); err != nil {
		return ib.name(err)
	}
	ib.sampler.reset()
	if !ib.cfg.manual {
		if err := ib.startAll(ctx); err != nil {
			return ib.name(errors.Join(err, ib.stopAll(ctx)))
		}
	}
	ib.mu.Lock()
	ib.started = true
	ib.mu.Unlock()
	ib.logStarted()
	return nil
}

// logStarted logs the running channels and handlers, for operators who compare several processes.
func (ib *Inbox) logStarted() {
	h := ib.processor.Health()
	var keys, channels []string
	for registered := range ib.registry.Handlers() {
		keys = append(keys, registered.Key())
	}
	for _, c := range ib.cfg.channels {
		channels = append(channels, fmt.Sprintf("%s (%s)", c.name, c.mode))
	}
	mode := string(h.Mode)
	if ib.cfg.manual {
		mode = "manual"
	}
	ib.log.Info("inbox: started", zap.String(telemetry.FieldMode, mode), zap.Strings(telemetry.FieldHandlerKeys, keys),
		zap.String(telemetry.FieldWorker, h.WorkerID), zap.String(telemetry.FieldSchema, ib.naming.Schema),
		zap.String(telemetry.FieldTablePrefix, ib.naming.Prefix), zap.Strings(telemetry.FieldChannels, channels))
}

func (ib *Inbox) startAll(ctx context.Context) error {
	ib.logSummaries.Start(ib.logLimit.Run)
	if err := ib.processor.Start(ctx); err != nil {
		return err
	}
	if len(ib.runners) > 0 {
		// The first heartbeat reads the paused handlers. A synchronous channel must not run a paused handler before
		// that.
		if err := ib.processor.TakePaused(ctx); err != nil {
			return fmt.Errorf("read paused handlers: %w", err)
		}
	}
	consumers, err := ib.newConsumers()
	if err != nil {
		return err
	}
	ib.mu.Lock()
	ib.consumers = consumers
	ib.mu.Unlock()
	// Declare the topics before any cleanup: unread records may need the rows that it would delete.
	if err := ib.recordProgress(ctx); err != nil {
		return err
	}
	ib.progress.Start(ib.recordProgressUntilStopped)
	ib.requests.Start(ib.reAcceptRequestedUntilStopped)
	ib.cleaner.Start()
	if err := ib.sampler.start(); err != nil {
		return err
	}
	for _, c := range consumers {
		if err := c.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends everything in reverse order: consumers and cleanup, then the processor, which gets the rest of ctx's time,
// see processor.Processor.Stop. Stopping twice, or before Start, only waits until other processes are notified of
// accepted messages, for a second at most.
func (ib *Inbox) Stop(ctx context.Context) error {
	ib.lifecycle.Lock()
	defer ib.lifecycle.Unlock()
	if !ib.started {
		return ib.name(ib.processor.Stop(ctx))
	}
	ib.mu.Lock()
	ib.started = false
	ib.mu.Unlock()
	worker := ib.processor.Health().WorkerID
	err := ib.stopAll(ctx)
	ib.log.Info("inbox: stopped", zap.String(telemetry.FieldWorker, worker), zap.Error(err))
	return ib.name(err)
}

// stopAll ends the services that startAll started, and actions that operators have requested. Consumers, cleanup and
// sampling stop concurrently and get a third of the time at most, so that running handlers and the last results have
// time left.
func (ib *Inbox) stopAll(ctx context.Context) error {
	short, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		short, cancel = context.WithTimeout(ctx, time.Until(deadline)/3)
	}
	defer cancel()
	defer ib.again.reopen() // once all has stopped
	stops := []func(context.Context) error{ib.again.stop, ib.cleaner.Stop, ib.sampler.stop,
		func(ctx context.Context) error {
			ctx, cancel := withGrace(ctx)
			defer cancel()
			return ib.requests.Stop(ctx)
		}}
	ib.mu.Lock()
	for _, c := range ib.consumers {
		stops = append(stops, c.Stop)
	}
	ib.mu.Unlock()
	problems := make([]error, len(stops))
	var stopping sync.WaitGroup
	for i, stop := range stops {
		stopping.Go(func() { problems[i] = stop(short) })
	}
	stopping.Wait()
	problems = append(problems, ib.progress.Stop(context.WithoutCancel(ctx))) // it ends at once
	ib.recordLastProgress(ctx)
	ib.mu.Lock()
	ib.consumers = nil
	ib.mu.Unlock()
	problems = append(problems, ib.processor.Stop(ctx), ib.logSummaries.Stop(context.WithoutCancel(ctx)))
	ib.logLimit.Flush()
	return errors.Join(problems...)
}

// prepareTimeout bounds a start's database calls where its caller sets no shorter deadline. It is long, because a
// migration may have to wait for other replicas.
const prepareTimeout = 5 * time.Minute

// prepare migrates and checks the database before anything runs on it, and logs what an operator should change.
func (ib *Inbox) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := ib.bounded(ctx, ib.checkSettings); err != nil {
		return err
	}
	if ib.cfg.options.Migrate {
		if err := models.Migrate(ctx, ib.db, ib.naming, ib.cfg.name); err != nil {
			return err
		}
	}
	if err := ib.tables.checkAtStart(ctx); err != nil {
		return err
	}
	ib.warnPool()
	ib.warnWithoutInbox()
	if err := ib.prepareInline(ctx); err != nil {
		return err
	}
	return ib.bounded(ctx, ib.warnOrphans, ib.warnSplitLanes)
}

// bounded makes checks, each of which may take StatementTimeout.
func (ib *Inbox) bounded(ctx context.Context, checks ...func(context.Context) error) error {
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
		err := check(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSettings logs wrong settings of the database, or refuses them.
func (ib *Inbox) checkSettings(ctx context.Context) error {
	return ib.warn(ib.store.CheckSettings(ctx))
}

// checkIsolation logs that transactions which state no isolation level do not run at READ COMMITTED.
func (ib *Inbox) checkIsolation(ctx context.Context) error {
	return ib.warn(ib.store.CheckIsolation(ctx, ib.cfg.options.Processor.TxIsolation))
}

func (ib *Inbox) warn(warnings []store.Warning, err error) error {
	for _, w := range warnings {
		ib.log.Warn(w.Message, w.Fields...)
	}
	return err
}

// warnPool logs that handlers' transactions would wait for connections. Every handler may have a slot, so that they may
// be more than Concurrency.
func (ib *Inbox) warnPool() {
	pool, err := ib.db.DB()
	if err != nil {
		return // not a *sql.DB, so its limit is unknown
	}
	limit := pool.Stats().MaxOpenConnections
	handlers, want := 0, handlertx.Reserved
	for _, c := range ib.cfg.channels {
		if c.mode == modeInbox {
			handlers += len(c.subscriptions)
		} else {
			want += c.options.PartitionConcurrency
		}
	}
	want += max(ib.cfg.options.Processor.Concurrency, handlers)
	if limit > 0 && limit < want {
		ib.log.Warn("inbox: the database pool is smaller than Concurrency and the number of handlers need: handlers' transactions will wait for connections; raise SetMaxOpenConns to wanted",
			zap.Int(telemetry.FieldMaxOpenConnections, limit), zap.Int(telemetry.FieldWanted, want))
	}
}

// warnOrphans logs the stored handler keys that this process does not register. A legacy key may have been forgotten.
func (ib *Inbox) warnOrphans(ctx context.Context) error {
	keys, err := ib.store.PendingKeys(ctx)
	if err != nil {
		return fmt.Errorf("query pending handler keys: %w", err)
	}
	for _, key := range keys {
		if _, known := ib.registry.Lookup(key); !known {
			ib.log.Warn("inbox: pending statuses of a handler key that this process does not register; a renamed handler needs handler.LegacyKeys",
				zap.String(telemetry.FieldHandlerKey, key))
		}
	}
	return nil
}

// warnSplitLanes logs the ordered handlers whose lanes are split, because the oldest of their keys was dropped too
// early.
func (ib *Inbox) warnSplitLanes(ctx context.Context) error {
	rules := map[string]store.LaneRule{}
	for h := range ib.registry.Handlers() {
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
	keys, err := ib.store.KeysWithSplitLanes(ctx, rules)
	if err != nil {
		return fmt.Errorf("query lanes of dropped handler keys: %w", err)
	}
	for _, key := range keys {
		ib.log.Error("inbox: lanes of an ordered handler are named by a key that it no longer has: later messages do not wait for those in them and can run out of order; "+
			"add that key again as the last of handler.LegacyKeys, and keep it until nothing accepted under it is pending or poisoned",
			zap.String(telemetry.FieldHandlerKey, key))
	}
	return nil
}
