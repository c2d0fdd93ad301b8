// Package inbox handles Kafka messages once, with retries, on the database that a GORM application already has. A
// record is persisted with one status row per handler before its offset is committed, and a processor runs each handler
// on its own schedule.
//
// An Inbox is the inbox of one database. New makes one without Fx; Module wires one into an Fx application.
package inbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/engine"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// Inbox is the inbox of one database in this process. It is safe for concurrent use.
type Inbox struct {
	cfg    *config
	db     *gorm.DB
	naming models.Naming
	engine *engine.Engine
}

// New makes an inbox on db, which stays the caller's to close. Nothing runs and nothing is read before Start. The error
// joins everything that is wrong with the declaration; each part names inbox, channel, option and handler key. A
// process with several inboxes should also call Validate.
func New(name string, db *gorm.DB, opts ...Option) (*Inbox, error) {
	return assemble((&config{name: name, declared: opts}).apply(nil), db, nil)
}

// assemble builds an inbox. resolved holds the handlers that came from the Fx graph, nil without Fx.
func assemble(cfg *config, db *gorm.DB, resolved map[*HandlerSpec]*handler.Handler) (*Inbox, error) {
	declared := cfg.engine(db, resolved)
	if err := errors.Join(cfg.validate(), cfg.named(engine.Check(declared))); err != nil {
		return nil, err
	}
	running, err := engine.New(declared)
	if err != nil {
		return nil, cfg.named(err)
	}
	return &Inbox{cfg: cfg, db: db, naming: declared.Naming, engine: running}, nil
}

// engine returns the declaration for the engine. It may be invalid.
func (cfg *config) engine(db *gorm.DB, resolved map[*HandlerSpec]*handler.Handler) engine.Config {
	resolved, senders := cfg.withSenders(resolved)
	registry, _ := registry.New(subscriptionsOf(cfg.channels, resolved)) // validate reports its error
	o := cfg.options
	e := engine.Config{Name: cfg.name, DB: db, Naming: models.Naming{Schema: o.Schema, Prefix: o.TablePrefix},
		PortableSQL: o.PortableSQL, Registry: registry, Processor: o.Processor, Acceptor: o.Acceptor, Cleanup: o.Cleanup,
		Migrate: o.Migrate, Manual: cfg.manual, WarnWithoutInbox: o.ConsumeChannelInboxRequirement == RequirementWarn,
		SampleInterval: o.SampleInterval, Limits: health.Limits{DegradedAfter: o.HealthDegradedAfter,
			UnhealthyAfter: o.HealthUnhealthyAfter, MaxDueAge: o.HealthMaxDueAge, MaxPoisonRate: o.HealthMaxPoisonRate,
			LongRunning: o.LongRunning},
		Backoff: o.Backoff, Middleware: o.Middleware, Hooks: o.Hooks, Archive: o.Archive, Ops: o.Ops,
		Redactor: cfg.redactor, Sealer: o.Sealer, Logger: cmp.Or(o.Logger, logging.Stderr()), Clock: cfg.clock,
		MeterProvider: o.MeterProvider, TracerProvider: o.TracerProvider, Propagator: o.Propagator}
	if o.ShutdownOnHalt {
		e.EndApplication = func() error { return cfg.shutdown(exitHalted) }
	}
	for _, c := range cfg.channels {
		declared := c.engine()
		declared.Sender = senders[c]
		e.Channels = append(e.Channels, declared)
	}
	return e
}

// Name returns the inbox's name.
func (ib *Inbox) Name() string { return ib.cfg.name }

// DB returns the session the inbox was made with, for queries with Tables: ib.DB().Clauses(ib.Tables()).
func (ib *Inbox) DB() *gorm.DB { return ib.db }

// Start checks the schema (or migrates), then starts processor, cleanup and consumers, in this order (contract 10.5).
// They do not end with ctx. If Start fails, nothing is left running. It fails while the database cannot be reached, but
// not while a broker cannot; the process's supervisor should restart it. Starting twice does nothing; a stopped inbox
// can be started again.
func (ib *Inbox) Start(ctx context.Context) error { return ib.name(ib.engine.Start(ctx)) }

// Stop ends everything in reverse order: consumers and cleanup, then the processor, which gets the rest of ctx's time,
// see processor.Processor.Stop. Stopping twice, or before Start, only waits until other processes are notified of
// accepted messages, for a second at most. If ctx ends while Stop waits for a Start, that Start fails.
func (ib *Inbox) Stop(ctx context.Context) error { return ib.name(ib.engine.Stop(ctx)) }

// Accept persists messages and wakes the processor, see acceptor.Acceptor.Accept. JSON makes a message. Without Start,
// the first call checks the inbox's tables, as Start does.
func (ib *Inbox) Accept(ctx context.Context, messages ...handler.RawMessage) ([]acceptor.Result, error) {
	results, err := ib.engine.Accept(ctx, messages...)
	return results, ib.name(err)
}

// JSON returns a message for Accept and AcceptTx, with payload as its JSON body. Set further fields, such as Source and
// OrderingKey, on the result. The error is that of json.Marshal, with the message's ID.
func JSON(channel, messageType, id string, payload any) (handler.RawMessage, error) {
	content, err := json.Marshal(payload)
	if err != nil {
		return handler.RawMessage{}, fmt.Errorf("message %q: %w", id, err)
	}
	return handler.RawMessage{Channel: channel, Type: messageType, ID: id, Content: content,
		ContentType: "application/json"}, nil
}

// AcceptRejected accepts a rejected message's record again, by its channel's current decoder, handlers and policies,
// and deletes the rejected row in the same transaction. It needs no Start. For an unknown ID it returns
// acceptor.ErrRejectedNotFound. If the record is still bad, it returns a *handler.StillBadError, and the row stays with
// the new reason. If this process does not declare the channel, it returns an *acceptor.InvalidError. A channel without
// Kafka decodes by the default decoder. Handlers of an Inline or Direct channel run at once, while the caller
// waits. In a record with several messages (batched CloudEvents), a message that was handled and cleaned up
// since runs its handlers again. See acceptor.Acceptor.AcceptRejected (contract 7.4).
func (ib *Inbox) AcceptRejected(ctx context.Context, id string) ([]acceptor.Result, error) {
	results, err := ib.engine.AcceptRejected(ctx, id)
	return results, ib.name(err)
}

// AcceptTx persists messages in the caller's transaction, see acceptor.Acceptor.AcceptTx. Call Wake on the receipt
// after the commit. A transaction that does not lead to this inbox's tables is refused before anything is written, with
// an error that names both inboxes. A transaction of another pool on the same database is accepted; the first one of
// each pool costs a query.
func (ib *Inbox) AcceptTx(ctx context.Context, tx *gorm.DB, messages ...handler.RawMessage) (*acceptor.Receipt, error) {
	receipt, err := ib.engine.AcceptTx(ctx, tx, messages...)
	return receipt, ib.name(err)
}

// ProcessPending runs everything that is due now, see processor.Processor.ProcessPending. It needs no Start; without
// it, the first call checks the inbox's tables.
func (ib *Inbox) ProcessPending(ctx context.Context) (processor.Drained, error) {
	drained, err := ib.engine.ProcessPending(ctx)
	return drained, ib.name(err)
}

// Cleanup deletes expired rows now, and returns how many of each table. It needs no Start; without it, the first call
// checks the inbox's tables. It fails with cleanup.ErrLeaseHeld while another worker cleans up, and with a
// *cleanup.WaitingError while a partition has never been read to its end: messages are then kept, whichever process
// reads that partition. See cleanup.Cleaner.Clean (contract 6.5, 6.7).
func (ib *Inbox) Cleanup(ctx context.Context) (handler.Deleted, error) {
	deleted, err := ib.engine.Cleanup(ctx)
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
	return ib.name(ib.engine.SetPaused(ctx, handlerKey, true))
}

// Resume undoes Pause.
func (ib *Inbox) Resume(ctx context.Context, handlerKey string) error {
	return ib.name(ib.engine.SetPaused(ctx, handlerKey, false))
}

// Ops returns the API to inspect and operate this inbox, for a dashboard or for your own program (contract 11.1). It
// has the inbox's tables, clock, StatementTimeout and redaction hook (Redact), and the actions that only this process
// can do; the option Ops, and then configure, may change the options. It needs no Start and starts nothing.
func (ib *Inbox) Ops(configure ...func(o *ops.Options)) (*ops.Ops, error) {
	o, err := ib.engine.NewOps(configure...)
	return o, ib.name(err)
}

// Counters returns what this process has counted since New.
func (ib *Inbox) Counters() handler.Counts { return ib.engine.Counters() }

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
