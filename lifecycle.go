package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Start checks the schema (or migrates), then starts processor, cleanup and
// consumers, in this order (contract 10.5). The end of ctx does not end what
// runs. If it fails, nothing is left running. It fails while the database
// cannot be reached (but not while a broker cannot): whoever supervises the
// process starts it again. Starting twice does nothing; a stopped inbox can be
// started again.
func (ib *Inbox) Start(ctx context.Context) error {
	ib.lifecycle.Lock()
	defer ib.lifecycle.Unlock()
	if ib.started {
		return nil
	}
	if err := ib.prepare(ctx); err != nil {
		return ib.name(err)
	}
	ib.sampler.begin()
	if !ib.cfg.manual {
		if err := ib.run(ctx); err != nil {
			return ib.name(errors.Join(err, ib.halt(ctx)))
		}
	}
	ib.mu.Lock()
	ib.started = true
	ib.mu.Unlock()
	return nil
}

func (ib *Inbox) run(ctx context.Context) error {
	ib.summing.Start(ib.logLimit.Run)
	if err := ib.processor.Start(ctx); err != nil {
		return err
	}
	if len(ib.runners) > 0 {
		// A synchronous channel must not run a paused handler before the first
		// heartbeat has read what is paused.
		if err := ib.processor.TakePaused(ctx); err != nil {
			return fmt.Errorf("read paused handlers: %w", err)
		}
	}
	consumers, err := ib.newConsumers()
	if err != nil {
		return err
	}
	// Known before cleanup starts, which waits for them.
	ib.mu.Lock()
	ib.consumers = consumers
	ib.mu.Unlock()
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

// Stop ends everything in reverse order: consumers, cleanup, processor, which
// gets what is left of ctx's time, see processor.Processor.Stop. Stopping
// twice, or before Start, does nothing.
func (ib *Inbox) Stop(ctx context.Context) error {
	ib.lifecycle.Lock()
	defer ib.lifecycle.Unlock()
	if !ib.started {
		return nil
	}
	ib.mu.Lock()
	ib.started = false
	ib.mu.Unlock()
	return ib.name(ib.halt(ctx))
}

// halt ends what run started. Consumers, cleanup and sampling, stopped side by side, get
// a third of the time at most, so that running handlers and the last results
// have theirs.
func (ib *Inbox) halt(ctx context.Context) error {
	ib.mu.Lock()
	consumers := ib.consumers
	ib.mu.Unlock()

	short, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		short, cancel = context.WithTimeout(ctx, time.Until(deadline)/3)
	}
	defer cancel()
	problems := make([]error, len(consumers)+3)
	var stopping sync.WaitGroup
	stopping.Add(2)
	go func() {
		defer stopping.Done()
		problems[len(consumers)] = ib.cleaner.Stop(short)
	}()
	go func() {
		defer stopping.Done()
		problems[len(consumers)+2] = ib.sampler.stop(short)
	}()
	for i, c := range consumers {
		stopping.Add(1)
		go func() {
			defer stopping.Done()
			problems[i] = c.Stop(short)
		}()
	}
	stopping.Wait()
	// Not before cleanup has ended, which would take it for a process that
	// need not wait for any.
	ib.mu.Lock()
	ib.consumers = nil
	ib.mu.Unlock()
	problems[len(consumers)+1] = ib.processor.Stop(ctx)
	problems = append(problems, ib.summing.Stop(context.WithoutCancel(ctx)))
	ib.logLimit.Flush()
	return errors.Join(problems...)
}

// prepareTimeout bounds what a start does in the database, where the caller
// does not: a migration may have to wait for other replicas.
const prepareTimeout = 5 * time.Minute

// prepare looks at the database before anything runs on it.
func (ib *Inbox) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := ib.checkFile(ctx); err != nil {
		return err
	}
	if ib.cfg.options.Migrate {
		if err := models.Migrate(ctx, ib.db, ib.naming, ib.cfg.name); err != nil {
			return err
		}
	}
	if err := ib.tables.start(ctx); err != nil {
		return err
	}
	if err := ib.checkListen(ctx); err != nil {
		return err
	}
	ib.warnPool()
	ib.warnWithoutInbox()
	if err := ib.prepareInline(ctx); err != nil {
		return err
	}
	if err := ib.warnForeignKeys(ctx); err != nil {
		return err
	}
	if err := ib.warnOrphans(ctx); err != nil {
		return err
	}
	return ib.warnStrayLanes(ctx)
}

// checkFile refuses SQLite databases in memory (contract 3.4).
func (ib *Inbox) checkFile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	inMemory, err := sqlite.InMemory(ctx, ib.db)
	if err == nil && inMemory {
		err = errors.New("the SQLite database is in memory, where connections lock each other out or see a database each: use a file in WAL mode, with a DSN like " +
			"file:inbox.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate (in tests fxtest.OpenDB), " +
			"for github.com/mattn/go-sqlite3 file:inbox.db?_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate")
	}
	return err
}

// spareConnections is what an inbox needs beside its handlers' connections:
// for accepting, claiming, storing results and heartbeats.
const spareConnections = 4

// warnPool says when handlers would wait for connections (contract 3.7).
func (ib *Inbox) warnPool() {
	pool, err := ib.db.DB()
	if err != nil {
		return // a pool of another kind, about which nothing is known
	}
	limit := pool.Stats().MaxOpenConnections
	o := ib.cfg.options
	if want := o.Processor.Concurrency + len(ib.runners)*o.PartitionConcurrency + spareConnections; limit > 0 &&
		limit < want {
		ib.log.Warn("inbox: the database pool is smaller than Concurrency needs: handlers will wait for connections, and heartbeats that wait too long cancel them",
			zap.Int(telemetry.FieldMaxOpenConnections, limit), zap.Int(telemetry.FieldWanted, want))
	}
}

// warnIsolation says when transactions that do not state their isolation have another
// than READ COMMITTED. Ours state it (contract 3.7).
func (ib *Inbox) warnIsolation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	d, other, err := ib.store.DefaultIsolation(ctx)
	if err != nil || !other {
		return err
	}
	level := ib.cfg.options.Processor.TxIsolation
	if level == sql.LevelDefault {
		level = sql.LevelReadCommitted
	}
	ib.log.Warn("inbox: default_transaction_isolation is not read committed: the inbox's own transactions and statements run at read committed all the same, "+
		"handlers' transactions at the level of option TxIsolation; what plain handlers and the rest of the application begin without stating a level has the default",
		zap.String(telemetry.FieldRole, d.Role), zap.String(telemetry.FieldDatabase, d.Database),
		zap.String(telemetry.FieldIsolation, d.Level),
		zap.String(telemetry.FieldSettingOf, d.Source),
		zap.String(telemetry.FieldHandlersIsolation, strings.ToLower(level.String())))
	return nil
}

// warnForeignKeys says when a message deleted by hand would leave its statuses
// behind (contract 3.2).
func (ib *Inbox) warnForeignKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	obeyed, err := sqlite.ObeysForeignKeys(ctx, ib.db)
	if err != nil {
		return err
	}
	if !obeyed {
		ib.log.Warn("inbox: SQLite's foreign keys are off: a message deleted by hand leaves its statuses behind, which can never run; " +
			"add _pragma=foreign_keys(1) to the DSN, or _foreign_keys=1 for github.com/mattn/go-sqlite3")
	}
	return nil
}

// warnOrphans says which stored handler keys nobody here registers: a
// forgotten legacy key, perhaps (contract 5.16).
func (ib *Inbox) warnOrphans(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	keys, err := ib.store.PendingKeys(ctx)
	if err != nil {
		return fmt.Errorf("read stored handler keys: %w", err)
	}
	for _, key := range keys {
		if _, known := ib.registry.Lookup(key); !known {
			ib.log.Warn("inbox: pending statuses of a handler key that this process does not register; a renamed handler needs handler.LegacyKeys",
				zap.String(telemetry.FieldHandlerKey, key))
		}
	}
	return nil
}

// warnStrayLanes says which ordered handlers have split their lanes by dropping
// the oldest of their keys too early (contract 5.12).
func (ib *Inbox) warnStrayLanes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	rules := map[string]store.LaneRule{}
	for _, h := range ib.registry.Handlers() {
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
	keys, err := ib.store.StrayLanes(ctx, rules)
	if err != nil {
		return fmt.Errorf("find lanes of dropped handler keys: %w", err)
	}
	for _, key := range keys {
		ib.log.Error("inbox: messages of an ordered handler can run out of order: some are pending in lanes named by a key it no longer has, and later ones do not wait for them; "+
			"add that key again as the last of handler.LegacyKeys, and keep it until nothing accepted under it is pending or poisoned",
			zap.String(telemetry.FieldHandlerKey, key))
	}
	return nil
}
