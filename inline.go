package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Inline runs the channel's handlers on its Kafka records as Direct does, without an inbox, but remembers which handler
// has processed which message: a redelivery, or a copy that the producer sent again, runs only the handlers that are
// not done.
//
// By default a marker of message ID and handler key is written to the inbox's table inbox_markers, first in the
// handler's transaction. So a Tx handler's writes through its tx happen exactly once. A duplicate in flight at the same
// moment waits for the first, uncharged, and then is skipped, or runs if the first failed. A plain handler has the
// transaction as handler.DB(ctx); its effects elsewhere happen at least once (contract 8.2). On SQLite, which has one
// writer at a time, handlers of all partitions run one after the other.
//
// Message IDs come from the channel's Decoder, or from a strategy given to InlineDefaults, InlineHandler or
// handler.IdempotencyKey. A message without a usable ID makes its record bad; with Decoder.AllowMissingID one without
// ID runs each time it comes (contract 4.4). With handler.LegacyKeys messages that were processed before a rename stay
// known, except with idempotent.CompositeID, whose IDs contain the key.
//
// A marker lasts for the handler's Retention (by default the store's, 24 h for the inbox's table), counted from the
// start of its run, and then until SweepMarkers deletes it. While the database or the store cannot be used, the
// partition waits, uncharged, and Health says so (contract 8.4).
//
// Inline requires Kafka. Batch handlers, Ordered, TxGroup, CircuitBreaker and Concurrency are not supported. Messages
// that the inbox handled before the channel became Inline are not remembered.
//
// Do not use it for handlers that fail for long, or that call slow services: a failing message holds up every later one
// of its partition, and each handler holds a transaction while it runs. Nor where operators must be able to see or
// replay messages: only the markers are stored, and records that handlers gave up, which AcceptRejected runs again. Do
// not set handler.Retention below the longest time after which a record may come again, consumers' downtime and replays
// included: the handler would run again (contract 1, 7.6, 8).
func Inline(opts ...InlineOption) ChannelOption {
	return func(c *channel) {
		c.inline = &inlineConfig{}
		for _, o := range opts {
			if o != nil {
				o(c.inline)
			}
		}
		c.setMode(modeInline)
	}
}

// InlineOption adjusts Inline.
type InlineOption func(*inlineConfig)

// inlineConfig is the declaration of an Inline channel.
type inlineConfig struct {
	store    idempotent.Store // nil without ownStore means the inbox's own, nil with it means none
	ownStore bool             // InlineStore was declared
	defaults []idempotent.Option
	handlers []inlineHandler
}

type inlineHandler struct {
	key   string
	store idempotent.Store // nil means the channel's
	opts  []idempotent.Option
}

// InlineStore keeps the channel's markers in another store instead of the inbox's tables: redisstore, memstore or one
// that the application implements. It writes a marker after the handler, so a crash between the two runs the handler
// again. A gormstore on the inbox's own pool writes them in the handlers' transactions instead; sweep it by
// idempotent.Sweeper. A nil store is none: handlers run each time a message comes, which is logged at start, or fails
// it under RequirementFail (contract 8.5). Do not use another store where handlers write to the inbox's database: only
// the default makes that happen exactly once.
func InlineStore(store idempotent.Store) InlineOption {
	return func(in *inlineConfig) { in.store, in.ownStore = store, true }
}

// InlineDefaults sets options of package idempotent for all handlers of the channel: Retention, Duplicates,
// AllowMissingID, IDFrom, CompositeID, or KeyBy for a handler.Delivery. Duplicates that fail make their record bad. Do
// not use IDFrom for IDs that the channel's Decoder can find. Do not use FailDuplicates unless a record that was
// delivered twice should be kept as rejected: Kafka redelivers after each crash.
func InlineDefaults(opts ...idempotent.Option) InlineOption {
	return func(in *inlineConfig) { in.defaults = append(in.defaults, opts...) }
}

// InlineHandler sets store and options for one handler of the channel, by its key; a nil store is the channel's. The
// options come after those of InlineDefaults and after the handler's own Retention and handler.IdempotencyKey. A key
// that the channel does not have fails the start. Do not use it for Retention alone: handler.Retention does.
func InlineHandler(key string, store idempotent.Store, opts ...idempotent.Option) InlineOption {
	return func(in *inlineConfig) { in.handlers = append(in.handlers, inlineHandler{key, store, opts}) }
}

// forHandler returns what is declared for one handler, the zero value if nothing is.
func (in *inlineConfig) forHandler(key string) inlineHandler {
	for _, h := range in.handlers {
		if h.key == key {
			return h
		}
	}
	return inlineHandler{}
}

// stores returns the declared stores, with nil for those left out.
func (in *inlineConfig) stores() []idempotent.Store {
	stores := []idempotent.Store{in.store}
	for _, h := range in.handlers {
		stores = append(stores, h.store)
	}
	return stores
}

// handlersWithoutStore returns the keys of the handlers that have no marker store.
func (in *inlineConfig) handlersWithoutStore(c *channel) []string {
	var keys []string
	for _, s := range c.subscriptions {
		if s.spec == nil || !in.ownStore || in.store != nil {
			continue
		}
		if in.forHandler(s.spec.key).store == nil {
			keys = append(keys, s.spec.key)
		}
	}
	return keys
}

// problems returns what is wrong with the channel's declaration.
func (in *inlineConfig) problems(c *channel, cfg *config) []error {
	var problems []error
	seen := map[string]bool{}
	for _, h := range in.handlers {
		known := slices.ContainsFunc(c.subscriptions, func(s subscription) bool {
			return s.spec != nil && s.spec.key == h.key
		})
		switch {
		case !known && cfg.handlersOpen(c):
		case !known:
			problems = append(problems, fmt.Errorf("channel %q: inbox.InlineHandler: the channel has no handler %q", c.name,
				h.key))
		case seen[h.key]:
			problems = append(problems, fmt.Errorf("channel %q: inbox.InlineHandler is declared twice for handler %q", c.name,
				h.key))
		}
		seen[h.key] = true
	}
	if keys := in.handlersWithoutStore(c); len(keys) > 0 && !cfg.optionsOpen() &&
		cfg.options.ConsumeChannelInboxRequirement == RequirementFail {
		problems = append(problems,
			fmt.Errorf("channel %q is in %s mode without a store for handlers %q, and option ConsumeChannelInboxRequirement is %s: give inbox.InlineStore a store, or leave it out",
				c.name, modeInline, keys, RequirementFail))
	}
	return problems
}

// markerWait is how long a message waits in the database for another run of the same message. While it waits, it holds
// a slot and a connection, and delays a stop. The message then tries again, after a pause that holds neither.
const markerWait = time.Second

// memories are the handlers' markers in Inline channels, by channel.
type memories map[string]map[*handler.Handler]*synchronous.Memory

func (ib *Inbox) newMemories(naming models.Naming) (memories, error) {
	all := memories{}
	var errs []error
	for _, c := range ib.cfg.channels {
		if c.mode != modeInline {
			continue
		}
		var err error
		if all[c.name], err = ib.channelMemories(c, naming); err != nil {
			errs = append(errs, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return all, errors.Join(errs...)
}

func (ib *Inbox) channelMemories(c *channel, naming models.Naming) (map[*handler.Handler]*synchronous.Memory, error) {
	store := c.inline.store
	if !c.inline.ownStore {
		own, err := gormstore.New(ib.db, func(o *gormstore.Options) {
			o.Schema = naming.Schema
			o.TablePrefix = naming.Prefix
			o.Clock = ib.cfg.clock
			o.StatementTimeout = ib.cfg.options.Processor.StatementTimeout
			o.LockTimeout = markerWait
		})
		if err != nil {
			return nil, err
		}
		store = own
	}
	memories := map[*handler.Handler]*synchronous.Memory{}
	var errs []error
	for _, s := range c.subscriptions {
		if s.spec == nil {
			continue
		}
		h, _ := ib.registry.Lookup(s.spec.key)
		declared := c.inline.forHandler(s.spec.key)
		handlerStore := store
		if declared.store != nil {
			handlerStore = declared.store
		}
		m, err := synchronous.NewMemory(ib.db, handlerStore, h, ib.receiverOptions(c), declared.opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		memories[h] = m
	}
	return memories, errors.Join(errs...)
}

// receiverOptions returns the options of package idempotent that all handlers of a channel have.
func (ib *Inbox) receiverOptions(c *channel) []idempotent.Option {
	opts := []idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
		o.Channel = c.name
		o.IDNamespace = c.idNamespace()
		o.Logger = ib.log
	})}
	if c.allowsMissingID() {
		opts = append(opts, idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))
	}
	return append(opts, c.inline.defaults...)
}

// allowsMissingID reports whether the transport's decoder lets messages without ID pass. Inline they then run without
// deduplication.
func (c *channel) allowsMissingID() bool {
	return len(c.kafka) > 0 && c.kafka[0].Decoder.AllowMissingID
}

// prepareInline checks the marker stores of Inline channels, and warns of missing ones and of markers that accumulate.
func (ib *Inbox) prepareInline(ctx context.Context) error {
	accumulating := []string{}
	for _, c := range ib.cfg.channels {
		if c.mode != modeInline {
			continue
		}
		if keys := c.inline.handlersWithoutStore(c); len(keys) > 0 {
			ib.log.Warn("inbox: inline channel has no store of processed messages: handlers run each time a message comes; give inbox.InlineStore a store",
				zap.String(telemetry.FieldChannel, c.name), zap.Strings(telemetry.FieldHandlerKeys, keys))
		}
		for _, store := range c.inline.stores() {
			if err := checkStore(ctx, store); err != nil {
				return fmt.Errorf("channel %q: %w", c.name, err)
			}
		}
		if !c.inline.ownStore {
			accumulating = append(accumulating, c.name)
		}
	}
	if len(accumulating) > 0 && !ib.cfg.options.Cleanup.SweepMarkers {
		ib.log.Warn("inbox: option SweepMarkers is off: markers of inline channels accumulate",
			zap.Strings(telemetry.FieldChannels, accumulating))
	}
	return nil
}

// checkStore reports a missing table at start, before the first message needs it.
func checkStore(ctx context.Context, store idempotent.Store) error {
	if tables, ok := store.(*gormstore.Store); ok {
		return tables.Check(ctx)
	}
	return nil
}

// keepsMarkers reports whether an Inline channel keeps markers in the tables of the inbox on db.
func (c *channel) keepsMarkers(db *gorm.DB) bool {
	return !c.inline.ownStore || slices.ContainsFunc(c.inline.stores(), func(store idempotent.Store) bool {
		tables, ok := store.(*gormstore.Store)
		return ok && tables.Joins(db)
	})
}
