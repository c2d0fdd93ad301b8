package inbox

import (
	"slices"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/engine"
	"github.com/gorm-inbox/inbox/internal/problems"
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
// Inline requires Kafka. Batch handlers, Ordered, TxGroup, CircuitBreaker, Concurrency, FleetConcurrency, Rate and
// RateBy are not supported. Messages that the inbox handled before the channel became Inline are not remembered.
//
// Do not use it for handlers that fail for long, or that call slow services: a failing message holds up every later one
// of its partition, and each handler holds a transaction while it runs. Nor where operators must be able to see or
// replay messages: only the markers are stored, and records that handlers gave up, which AcceptRejected runs again. Do
// not set handler.Retention below the longest time after which a record may come again, consumers' downtime and replays
// included: the handler would run again (contract 1, 7.6, 8).
func Inline(opts ...InlineOption) ChannelOption {
	return func(c *channel) {
		c.markers = &inlineConfig{}
		applyAll(opts, c.markers)
		c.setMode(engine.Inline)
	}
}

// InlineOption adjusts Inline.
type InlineOption func(*inlineConfig)

// inlineConfig is the declaration of an Inline channel.
type inlineConfig = engine.Markers

// InlineStore keeps the channel's markers in another store instead of the inbox's tables: redisstore, memstore or one
// that the application implements. It writes a marker after the handler, so a crash between the two runs the handler
// again. A gormstore on the inbox's own pool writes them in the handlers' transactions instead; sweep it by
// idempotent.Sweeper. A nil store is none: handlers run each time a message comes, which is logged at start, or fails
// it under RequirementFail (contract 8.5). Do not use another store where handlers write to the inbox's database: only
// the default makes that happen exactly once.
func InlineStore(store idempotent.Store) InlineOption {
	return func(in *inlineConfig) { in.Store, in.OwnStore = store, true }
}

// InlineDefaults sets options of package idempotent for all handlers of the channel: Retention, Duplicates,
// AllowMissingID, IDFrom, CompositeID, or KeyBy for a handler.Delivery. Duplicates that fail make their record bad. Do
// not use IDFrom for IDs that the channel's Decoder can find. Do not use FailDuplicates unless a record that was
// delivered twice should be kept as rejected: Kafka redelivers after each crash.
func InlineDefaults(opts ...idempotent.Option) InlineOption {
	return func(in *inlineConfig) { in.Defaults = append(in.Defaults, opts...) }
}

// InlineHandler sets store and options for one handler of the channel, by its key; a nil store is the channel's. The
// options come after those of InlineDefaults and after the handler's own Retention and handler.IdempotencyKey. A key
// that the channel does not have fails the start. Do not use it for Retention alone: handler.Retention does.
func InlineHandler(key string, store idempotent.Store, opts ...idempotent.Option) InlineOption {
	return func(in *inlineConfig) {
		in.Handlers = append(in.Handlers, engine.HandlerMarkers{Key: key, Store: store, Opts: opts})
	}
}

// markerProblems returns what is wrong with the declaration of an Inline channel.
func (c *channel) markerProblems(cfg *config) []error {
	var found problems.List
	seen := map[string]bool{}
	for _, h := range c.markers.Handlers {
		known := slices.ContainsFunc(c.subscriptions, func(s subscription) bool {
			return s.spec != nil && s.spec.key == h.Key
		})
		switch {
		case !known && cfg.handlersOpen(c):
		case !known:
			found.Addf("channel %q: inbox.InlineHandler: the channel has no handler %q", c.name, h.Key)
		case seen[h.Key]:
			found.Addf("channel %q: inbox.InlineHandler is declared twice for handler %q", c.name, h.Key)
		}
		seen[h.Key] = true
	}
	if keys := c.markers.WithoutStore(c.handlerKeys()); len(keys) > 0 && !cfg.optionsOpen() &&
		cfg.options.ConsumeChannelInboxRequirement == RequirementFail {
		found.Addf("channel %q is in %s mode without a store for handlers %q, and option ConsumeChannelInboxRequirement is %s: give inbox.InlineStore a store, or leave it out",
			c.name, engine.Inline, keys, RequirementFail)
	}
	return found
}
