// Package inbox handles Kafka messages once, with retries, on the database
// your GORM application already has: a record is persisted with one status
// row per handler before its offset is committed, and a processor runs each
// handler on its own schedule.
//
// An Inbox is one database's inbox. New makes one without Fx; Module wires one
// into an Fx application.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// Inbox is one database's inbox in this process. It is safe for concurrent use.
type Inbox struct {
	cfg      *config
	db       *gorm.DB
	naming   models.Naming
	registry *registry.Registry
	store    store.Store
	counters *telemetry.Counters
	// instruments are those of OpenTelemetry, see instruments.go.
	instruments *telemetry.Instruments
	sampler     *sampler
	acceptor    *acceptor.Acceptor
	processor   *processor.Processor
	cleaner     *cleanup.Cleaner
	running     *attempt.Running               // the handlers' calls, in all delivery modes
	runners     map[string]*synchronous.Runner // of channels that are not stored
	memories    memories
	tables      *tables
	log         *zap.Logger
	logLimit    *logging.Limiter
	summing     routine.Loop // of the log, while started

	ending    sync.Once  // of the application, by ShutdownOnHalt
	lifecycle sync.Mutex // held by Start and Stop throughout
	mu        sync.Mutex
	started   bool
	consumers []*kafkaconsumer.Consumer // of the current run
}

// New makes an inbox on db, which stays the caller's to close. Nothing runs
// and nothing is read before Start. The error joins everything that is wrong
// with the declaration, each part naming inbox, channel, option and handler
// key. A process with several inboxes should also call Validate.
func New(name string, db *gorm.DB, opts ...Option) (*Inbox, error) {
	cfg := newConfig(name, opts)
	return assemble(cfg, db, nil)
}

// assemble puts an inbox together; resolved are the handlers that came from
// the Fx graph, nil without Fx.
func assemble(cfg *config, db *gorm.DB, resolved map[*HandlerSpec]*handler.Handler) (*Inbox, error) {
	registry, _ := registry.New(subscriptionsOf(cfg.channels, resolved)) // validate reports what is wrong with them
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
	if ib.store, err = dialects.New(db, ib.naming, cfg.storeOptions()); err != nil {
		return fail(err)
	}
	ib.running = attempt.NewRunning(cfg.clock.Now)
	ib.processor, err = processor.New(processor.Config{Running: ib.running, DB: db, Store: ib.store, Registry: registry,
		Options: cfg.options.Processor,
		Clock:   cfg.clock, Logger: ib.log, Counters: ib.counters, Instruments: ib.instruments, Hooks: cfg.options.Hooks,
		Middleware: cfg.options.Middleware, Backoff: cfg.options.Backoff,
		Health: ib.healthJSON, Redactor: cfg.redactor})
	if err != nil {
		return fail(err)
	}
	ib.acceptor, err = acceptor.New(acceptor.Config{Store: ib.store, Registry: registry,
		Channels: channelNames(cfg.channels), Namespaces: sharedNamespaces(cfg.channels),
		NotStored: deliveredInPlace(cfg.channels),
		Decoders:  ib.decoders(), Options: cfg.options.Acceptor,
		StatementTimeout: cfg.options.Processor.StatementTimeout, Retention: cfg.options.Cleanup.Retention,
		Redactor: cfg.redactor,
		Clock:    cfg.clock, Logger: ib.log, Counters: ib.counters, Instruments: ib.instruments, Hooks: cfg.options.Hooks,
		Wake: func(keys []string) {
			ib.processor.Wake(keys...)
		},
		Reserve: func(wanted map[string]int) acceptor.Reservation {
			if r := ib.processor.Reserve(wanted); r != nil {
				return r
			}
			return nil
		}})
	if err != nil {
		return fail(err)
	}
	ib.cleaner, err = cleanup.New(cleanup.Config{Store: ib.store, Options: cfg.options.Cleanup,
		Handlers: registry.Handlers(), Archive: cfg.options.Archive,
		Waiting: ib.waiting, StatementTimeout: cfg.options.Processor.StatementTimeout,
		WorkerAge: 2*cfg.options.Processor.WorkerTimeout + cfg.options.Processor.UnknownKeyGrace, Clock: cfg.clock,
		Logger: ib.log, Instruments: ib.instruments})
	if err != nil {
		return fail(err)
	}
	ib.runners = ib.newRunners()
	ib.sampler = &sampler{ib: ib}
	if _, err := ib.newConsumers(); err != nil {
		return fail(err)
	}
	return ib, nil
}

// validateDB reports what cannot be with this database, and what only the
// stores of Inline channels can say of their options.
func (ib *Inbox) validateDB() error {
	if ib.db == nil {
		return errors.New("the *gorm.DB is nil")
	}
	var all []error
	if dialect := ib.db.Dialector.Name(); ib.cfg.options.Processor.Listen && dialect != "postgres" {
		all = append(all, fmt.Errorf("option Listen requires PostgreSQL (got %s)",
			dialect))
	}
	level := ib.cfg.options.Processor.TxIsolation
	if allowed := handlertx.RefusedIsolation(ib.db.Dialector.Name(), level); allowed != handlertx.RefusedIsolation("",
		level) {
		all = append(all, fmt.Errorf("option TxIsolation = %s: must be %s", level, allowed))
	}
	naming := ib.naming
	if naming.Validate() != nil { // which the options report
		naming = models.Naming{Prefix: columns.DefaultPrefix}
	}
	if _, err := dialects.New(ib.db, naming, store.Options{}); err != nil {
		return errors.Join(append(all, err)...)
	}
	_, err := ib.newMemories(naming)
	return errors.Join(append(all, err)...)
}

// newConsumers makes the consumers of all channels that have a transport. A
// consumer lives once, so each start makes its own.
func (ib *Inbox) newConsumers() ([]*kafkaconsumer.Consumer, error) {
	var (
		consumers []*kafkaconsumer.Consumer
		problems  []error
	)
	for _, c := range ib.cfg.channels {
		for _, cfg := range c.kafka {
			consumer, err := ib.newConsumer(c, ib.consuming(c.name, cfg))
			if err != nil {
				problems = append(problems, err)
				continue
			}
			consumers = append(consumers, consumer)
		}
	}
	return consumers, errors.Join(problems...)
}

func (ib *Inbox) newConsumer(c *channel, cfg kafkaconsumer.Config) (*kafkaconsumer.Consumer, error) {
	if c.delivery == viaInbox {
		return kafkaconsumer.New(c.name, cfg, ib.acceptor, ib.log, ib.cfg.clock)
	}
	// In Direct mode there is nothing to deduplicate by it. In Inline mode the
	// handlers' memories judge: coordinates would be remembered, and no resent copy found.
	cfg.Decoder.AllowMissingID = c.delivery == direct
	return kafkaconsumer.NewDirect(c.name, cfg, ib.runners[c.name],
		ib.cfg.options.Acceptor.Unrouted == acceptor.UnroutedReject, ib.acceptor, ib.log, ib.cfg.clock)
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

// DB returns the session the inbox was made with, for queries scoped by
// Messages, Statuses, Rejected and Gaps.
func (ib *Inbox) DB() *gorm.DB { return ib.db }

// Accept persists messages and wakes the processor, see acceptor.Acceptor.Accept.
// Without Start, the first call checks the inbox's tables, as Start does.
func (ib *Inbox) Accept(ctx context.Context, messages ...handler.RawMessage) ([]acceptor.Result, error) {
	if err := ib.tables.ready(ctx); err != nil {
		return nil, ib.name(err)
	}
	results, err := ib.acceptor.Accept(ctx, messages...)
	return results, ib.name(err)
}

// AcceptTx persists messages in the caller's transaction, see
// acceptor.Acceptor.AcceptTx. Call Wake on the receipt after the commit. A
// transaction that does not lead to this inbox's tables is refused, before
// anything is written, with an error that names both inboxes. That of another
// pool on the same database is accepted; its first one is asked where it leads.
func (ib *Inbox) AcceptTx(ctx context.Context, tx *gorm.DB, messages ...handler.RawMessage) (*acceptor.Receipt, error) {
	if err := ib.tables.reachedBy(ctx, tx); err != nil {
		return nil, ib.name(fmt.Errorf("accept in transaction: %w", err))
	}
	receipt, err := ib.acceptor.AcceptTx(ctx, tx, messages...)
	return receipt, ib.name(err)
}

// ProcessPending runs everything that is due now, see
// processor.Processor.ProcessPending. It needs no Start; without it, the first
// call checks the inbox's tables.
func (ib *Inbox) ProcessPending(ctx context.Context) (processor.Drained, error) {
	defer ib.logLimit.Flush()
	if err := ib.tables.ready(ctx); err != nil {
		return processor.Drained{}, ib.name(err)
	}
	drained, err := ib.processor.ProcessPending(ctx)
	return drained, ib.name(err)
}

// Cleanup deletes what the retentions allow, now, and says how much of what. It
// needs no Start; without it, the first call checks the inbox's tables. It fails
// with cleanup.ErrLeaseHeld while another worker is at it, and with a *cleanup.WaitingError while a consumer that
// this inbox runs in this process has not caught up: by hand, too, nothing is deleted before. Call
// it from a process that consumes nothing, or try again. See
// cleanup.Cleaner.Clean (contract 6.5, 6.7).
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

// Pause stops claiming for a handler key on every worker, within a heartbeat
// of each; running handlers go on. On an Inline or Direct channel each partition
// waits at the next message for the handler. An unknown key is an error. Do not
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
	keys := h.Keys() // workers of a program from before a rename know the legacy ones
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

// Counters tells what this process has counted since New.
func (ib *Inbox) Counters() handler.Counts { return ib.counters.Snapshot() }

// Messages scopes a query to the inbox's messages: db.Scopes(ib.Messages).
func (ib *Inbox) Messages(db *gorm.DB) *gorm.DB {
	return db.Model(&models.Message{}).Table(ib.naming.Messages())
}

// Statuses scopes a query to the inbox's statuses: db.Scopes(ib.Statuses).
func (ib *Inbox) Statuses(db *gorm.DB) *gorm.DB {
	return db.Model(&models.HandlerStatus{}).Table(ib.naming.HandlerStatuses())
}

// Rejected scopes a query to the inbox's rejected messages: db.Scopes(ib.Rejected).
func (ib *Inbox) Rejected(db *gorm.DB) *gorm.DB {
	return db.Model(&models.RejectedMessage{}).Table(ib.naming.RejectedMessages())
}

// Gaps scopes a query to the gaps that channels have passed: db.Scopes(ib.Gaps).
func (ib *Inbox) Gaps(db *gorm.DB) *gorm.DB {
	return db.Model(&models.Gap{}).Table(ib.naming.Gaps())
}

func (ib *Inbox) name(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox %q: %w", ib.cfg.name, err)
}

// Validate checks several inboxes of one process against each other, as
// Module does by itself: names, handler keys and the consumer groups of channels
// must be distinct, and no two may use the same tables of the same pool. The error joins every problem
// (contract 3.4, 5.16).
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

// checkKeys gives registry.CheckKeys an order that does not depend on chance.
func checkKeys(all []registry.Registration) error {
	slices.SortStableFunc(all, func(a, b registry.Registration) int { return strings.Compare(a.Inbox, b.Inbox) })
	return registry.CheckKeys(all)
}
