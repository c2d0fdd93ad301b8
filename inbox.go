// Package inbox handles Kafka messages once, with retries, on the database that a GORM application already has. A
// record is persisted with one status row per handler before its offset is committed, and a processor runs each handler
// on its own schedule.
//
// An Inbox is the inbox of one database. New makes one without Fx; Module wires one into an Fx application.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// Inbox is the inbox of one database in this process. It is safe for concurrent use.
type Inbox struct {
	cfg          *config
	db           *gorm.DB
	naming       models.Naming
	registry     *registry.Registry
	store        store.Store
	counters     *telemetry.Counters
	instruments  *telemetry.Instruments
	sampler      *sampler
	acceptor     *acceptor.Acceptor
	processor    *processor.Processor
	cleaner      *cleanup.Cleaner
	running      *attempt.Running               // calls of handlers, in all delivery modes
	runners      map[string]*synchronous.Runner // of synchronous channels, by channel
	memories     memories
	ops          *ops.Ops // provided by Module
	tables       *tables
	log          *zap.Logger
	logLimit     *logging.Limiter
	requests     routine.Loop // carries out operators' requests for rejected messages, while started
	progress     routine.Loop // records consumers' progress, while started
	logSummaries routine.Loop // writes summaries of the log lines that the limiter has suppressed, while started

	again        again
	shutdownOnce sync.Once  // by ShutdownOnHalt
	lifecycle    sync.Mutex // held by Start and Stop throughout
	mu           sync.Mutex
	started      bool
	consumers    []*kafkaconsumer.Consumer // of the current run
}

// New makes an inbox on db, which stays the caller's to close. Nothing runs and nothing is read before Start. The error
// joins everything that is wrong with the declaration; each part names inbox, channel, option and handler key. A
// process with several inboxes should also call Validate.
func New(name string, db *gorm.DB, opts ...Option) (*Inbox, error) {
	cfg := newConfig(name, opts)
	return assemble(cfg, db, nil)
}

// assemble builds an inbox. resolved holds the handlers that came from the Fx graph, nil without Fx.
func assemble(cfg *config, db *gorm.DB, resolved map[*HandlerSpec]*handler.Handler) (*Inbox, error) {
	registry, _ := registry.New(subscriptionsOf(cfg.channels, resolved)) // validate reports its error
	ib := &Inbox{cfg: cfg, db: db, naming: models.Naming{Schema: cfg.options.Schema, Prefix: cfg.options.TablePrefix},
		registry: registry,
		counters: countersOf(cfg, registry)}
	ib.log, ib.logLimit = logging.Limit(cfg.options.Logger, cfg.redactor)
	ib.log = ib.log.With(zap.String(telemetry.FieldInbox, cfg.name))
	ib.tables = &tables{ib: ib}
	if err := errors.Join(cfg.validate(), cfg.named(ib.validateDB())); err != nil {
		return nil, err
	}
	fail := func(err error) (*Inbox, error) { return nil, cfg.named(err) }
	var err error
	if ib.memories, err = ib.newMemories(ib.naming); err != nil {
		return fail(err)
	}
	if err = ib.instrument(); err != nil {
		return fail(err)
	}
	if ib.store, err = stores.New(db, ib.naming, store.Options{TestClock: clock.IsTest(cfg.clock)}); err != nil {
		return fail(err)
	}
	ib.running = attempt.NewRunning(cfg.clock.Now)
	ib.processor, err = processor.New(processor.Config{Running: ib.running, DB: db, Store: ib.store, Registry: registry,
		Options: cfg.options.Processor, MaxRetries: maxRetries(cfg.channels), Namespaces: sharedNamespaces(cfg.channels),
		Clock: cfg.clock, Logger: ib.log, Counters: ib.counters, Instruments: ib.instruments, Hooks: cfg.options.Hooks,
		Middleware: cfg.options.Middleware, Backoff: cfg.options.Backoff,
		Report: ib.report, Redactor: cfg.redactor})
	if err != nil {
		return fail(err)
	}
	notifyTx := ib.store.NotifyTx
	if !cfg.options.Processor.Listen {
		notifyTx = nil
	}
	ib.acceptor, err = acceptor.New(acceptor.Config{Store: ib.store, Registry: registry,
		Channels: channelNames(cfg.channels), Namespaces: sharedNamespaces(cfg.channels),
		NotStored: synchronousChannels(cfg.channels), RunAgain: ib.runAgain,
		Decoders: ib.decoders(), Options: cfg.options.Acceptor, Own: ownPolicies(cfg.channels),
		StatementTimeout: cfg.options.Processor.StatementTimeout, Retention: cfg.options.Cleanup.Retention,
		Redactor: cfg.redactor,
		Clock:    cfg.clock, Logger: ib.log, Counters: ib.counters, Instruments: ib.instruments, Hooks: cfg.options.Hooks,
		Wake:     func(keys []string) { ib.processor.Wake(keys...) },
		NotifyTx: notifyTx,
		Reserve: func(wanted map[string]int, bytes int) acceptor.Reservation {
			if r := ib.processor.Reserve(wanted, bytes); r != nil {
				return r
			}
			return nil
		}})
	if err != nil {
		return fail(err)
	}
	ib.cleaner, err = cleanup.New(cleanup.Config{Store: ib.store, Options: cfg.options.Cleanup,
		Handlers: slices.Collect(registry.Handlers()), Archive: cfg.options.Archive,
		Record: ib.recordProgress, StatementTimeout: cfg.options.Processor.StatementTimeout,
		WorkerAge: 2*cfg.options.Processor.WorkerTimeout + cfg.options.Processor.UnknownKeyGrace, Clock: cfg.clock,
		Logger: ib.log, Instruments: ib.instruments})
	if err != nil {
		return fail(err)
	}
	ib.runners = ib.newRunners()
	ib.sampler = &sampler{ib: ib}
	if ib.ops, err = ib.Ops(); err != nil {
		return nil, err
	}
	handlertx.Reserve(db)
	return ib, nil
}

// countersOf makes counters with a series for each declared channel and handler.
func countersOf(cfg *config, registry *registry.Registry) *telemetry.Counters {
	var keys [][]string
	for h := range registry.Handlers() {
		keys = append(keys, h.Keys())
	}
	return telemetry.NewCounters(channelNames(cfg.channels), keys)
}

// instrument makes the instruments. The counters are observed until the inbox is garbage, so that the last collection,
// when the application ends its provider after Stop, has the final counts. Nothing that is observed may therefore refer
// to ib.
func (ib *Inbox) instrument() error {
	var err error
	ib.instruments, err = telemetry.New(telemetry.Config{Inbox: ib.cfg.name, Counters: ib.counters,
		MeterProvider: ib.cfg.options.MeterProvider, TracerProvider: ib.cfg.options.TracerProvider,
		Propagator: ib.cfg.options.Propagator,
		Redactor:   ib.cfg.redactor})
	if err != nil {
		return err
	}
	runtime.AddCleanup(ib, func(i *telemetry.Instruments) {
		_ = i.Close() // no caller is left to return it to
	}, ib.instruments)
	return nil
}

// validateDB returns what this database does not support, and what the marker stores of Inline channels refuse.
func (ib *Inbox) validateDB() error {
	if ib.db == nil {
		return errors.New("the *gorm.DB is nil")
	}
	var all []error
	level := ib.cfg.options.Processor.TxIsolation
	if d, err := dialects.Of(ib.db); err == nil && dialects.RefusedIsolation(level) == "" {
		if allowed := d.RefusedIsolation(level); allowed != "" {
			all = append(all, fmt.Errorf("option TxIsolation = %s: must be %s on %s", level, allowed, d.Name))
		}
	}
	naming := ib.naming
	if naming.Validate() != nil { // Options.Validate reports that
		naming = models.Naming{Prefix: columns.DefaultPrefix}
	}
	if _, err := stores.New(ib.db, naming, store.Options{}); err != nil {
		return errors.Join(append(all, err)...)
	}
	_, err := ib.newMemories(naming)
	return errors.Join(append(all, err)...)
}

func channelNames(channels []*channel) []string {
	names := make([]string, len(channels))
	for i, c := range channels {
		names[i] = c.name
	}
	return names
}

// Name returns the inbox's name.
func (ib *Inbox) Name() string { return ib.cfg.name }

// DB returns the session the inbox was made with, for queries with Tables: ib.DB().Clauses(ib.Tables()).
func (ib *Inbox) DB() *gorm.DB { return ib.db }

// Accept persists messages and wakes the processor, see acceptor.Acceptor.Accept. Without Start, the first call checks
// the inbox's tables, as Start does.
func (ib *Inbox) Accept(ctx context.Context, messages ...handler.RawMessage) ([]acceptor.Result, error) {
	if err := ib.tables.ready(ctx); err != nil {
		return nil, ib.name(err)
	}
	results, err := ib.acceptor.Accept(ctx, messages...)
	return results, ib.name(err)
}

// AcceptRejected accepts a rejected message's record again, by its channel's current decoder, handlers and policies,
// and deletes the rejected row in the same transaction. It needs no Start. For an unknown ID it returns
// acceptor.ErrRejectedNotFound. If the record is still bad, it returns a *handler.StillBadError, and the row stays with
// the new reason. If this process does not declare the channel, it returns an *acceptor.InvalidError. A channel without
// Kafka decodes by the default decoder. Handlers of an Inline or Direct channel run at once, while the caller
// waits. In a record with several messages (batched CloudEvents), a message that was handled and cleaned up
// since runs its handlers again. See acceptor.Acceptor.AcceptRejected (contract 7.4).
func (ib *Inbox) AcceptRejected(ctx context.Context, id string) ([]acceptor.Result, error) {
	if err := ib.tables.ready(ctx); err != nil {
		return nil, ib.name(err)
	}
	results, err := ib.acceptor.AcceptRejected(ctx, id)
	return results, ib.name(err)
}

// AcceptTx persists messages in the caller's transaction, see acceptor.Acceptor.AcceptTx. Call Wake on the receipt
// after the commit. A transaction that does not lead to this inbox's tables is refused before anything is written, with
// an error that names both inboxes. A transaction of another pool on the same database is accepted; the first one of
// each pool costs a query.
func (ib *Inbox) AcceptTx(ctx context.Context, tx *gorm.DB, messages ...handler.RawMessage) (*acceptor.Receipt, error) {
	if err := ib.tables.checkTx(ctx, tx); err != nil {
		return nil, ib.name(fmt.Errorf("accept in transaction: %w", err))
	}
	receipt, err := ib.acceptor.AcceptTx(ctx, tx, messages...)
	return receipt, ib.name(err)
}

// ProcessPending runs everything that is due now, see processor.Processor.ProcessPending. It needs no Start; without
// it, the first call checks the inbox's tables.
func (ib *Inbox) ProcessPending(ctx context.Context) (processor.Drained, error) {
	defer ib.logLimit.Flush()
	if err := ib.tables.ready(ctx); err != nil {
		return processor.Drained{}, ib.name(err)
	}
	drained, err := ib.processor.ProcessPending(ctx)
	return drained, ib.name(err)
}

// Cleanup deletes expired rows now, and returns how many of each table. It needs no Start; without it, the first call
// checks the inbox's tables. It fails with cleanup.ErrLeaseHeld while another worker cleans up, and with a
// *cleanup.WaitingError while a partition has never been read to its end: messages are then kept, whichever process
// reads that partition. See cleanup.Cleaner.Clean (contract 6.5, 6.7).
func (ib *Inbox) Cleanup(ctx context.Context) (handler.Deleted, error) {
	if err := ib.tables.ready(ctx); err != nil {
		return handler.Deleted{}, ib.name(err)
	}
	deleted, err := ib.cleaner.Clean(ctx)
	return deleted, ib.name(err)
}

// Migrate creates or updates the inbox's tables, see models.Migrate.
func (ib *Inbox) Migrate(ctx context.Context) error {
	return ib.name(models.Migrate(ctx, ib.db, ib.naming, ib.cfg.name))
}

// Pause stops claiming for a handler key on every worker, within a heartbeat of each; running handlers go on. On an
// Inline or Direct channel each partition waits at the next message for the handler. An unknown key is an error. Do not
// use it to stop one worker: stop the worker (contract 5.13).
func (ib *Inbox) Pause(ctx context.Context, handlerKey string) error {
	return ib.setPaused(ctx, handlerKey, true)
}

// Resume undoes Pause.
func (ib *Inbox) Resume(ctx context.Context, handlerKey string) error {
	return ib.setPaused(ctx, handlerKey, false)
}

func (ib *Inbox) setPaused(ctx context.Context, key string, paused bool) error {
	h, known := ib.registry.Lookup(key)
	if !known {
		return ib.name(fmt.Errorf("handler key %q is not registered", key))
	}
	if err := ib.tables.ready(ctx); err != nil {
		return ib.name(err)
	}
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	keys := h.Keys() // a worker from before a rename only knows a legacy key
	if !paused {
		stored, err := ib.store.Paused(ctx)
		if err != nil {
			return ib.name(err)
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !slices.Contains(stored, key) })
	}
	for _, key := range keys {
		if err := ib.store.SetPaused(ctx, key, paused, ib.cfg.clock.Now()); err != nil {
			return ib.name(err)
		}
	}
	return nil
}

// Counters returns what this process has counted since New.
func (ib *Inbox) Counters() handler.Counts { return ib.counters.Snapshot() }

// Tables directs a GORM statement to this inbox's table for the statement's model, in any schema and with any prefix
// (contract 3.4):
//
//	db.Clauses(ib.Tables()).Where("is_poisoned").Find(&statuses)
//	db.Clauses(ib.Tables()).Model(&models.Marker{}).Count(&n)
//	gorm.G[models.HandlerStatus](db, ib.Tables()).Where("is_poisoned").Find(ctx)
//
// It also has the tables' names, for hand-written SQL: ib.Tables().HandlerStatuses().
func (ib *Inbox) Tables() models.Naming { return ib.naming }

func (ib *Inbox) name(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox %q: %w", ib.cfg.name, err)
}

// Validate checks several inboxes of one process against each other, as Module does by itself. Names, handler keys and
// the consumer groups of channels must be distinct, and no two may use the same tables of the same pool. The error
// joins all problems (contract 3.4, 5.16).
func Validate(inboxes ...*Inbox) error {
	var all []registry.Registration
	var members []membership
	var problems []error
	for i, ib := range inboxes {
		all = append(all, registrations(ib.cfg.name, ib.cfg.channels)...)
		members = append(members, memberships(ib.cfg.name, ib.cfg.channels)...)
		for _, other := range inboxes[:i] {
			if ib.cfg.name == other.cfg.name {
				problems = append(problems, fmt.Errorf("two inboxes are called %q", ib.cfg.name))
			}
			if ib.samePool(other) && ib.naming == other.naming {
				problems = append(problems, fmt.Errorf("inboxes %q and %q use the same database with the same table prefix %q",
					other.cfg.name, ib.cfg.name, ib.naming.Prefix))
			}
		}
	}
	return errors.Join(append(problems, checkKeys(all), checkGroups(members))...)
}

func (ib *Inbox) samePool(other *Inbox) bool {
	a, errA := ib.db.DB()
	b, errB := other.db.DB()
	return errA == nil && errB == nil && a == b
}

// checkKeys calls registry.CheckKeys in the order of the inboxes' names, so that its error does not depend on Fx's
// random order.
func checkKeys(all []registry.Registration) error {
	slices.SortStableFunc(all, func(a, b registry.Registration) int { return strings.Compare(a.Inbox, b.Inbox) })
	return registry.CheckKeys(all)
}
