package idempotent

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/settings"
)

// DuplicatePolicy says how to treat a message that was processed before.
type DuplicatePolicy string

// The duplicate policies.
const (
	// SkipDuplicates returns nil.
	SkipDuplicates DuplicatePolicy = "skip"
	// LogDuplicates logs the message with its handler and returns nil. It needs a logger.
	LogDuplicates DuplicatePolicy = "log"
	// FailDuplicates returns a *DuplicateError.
	FailDuplicates DuplicatePolicy = "fail"
)

// Options are settings of all handlers of a Receiver or of one; Configure sets them. Those with a key can also come
// from a file or from the environment: start from DefaultOptions.
type Options struct {
	// Retention is how long it is remembered that a message was processed, at least: an expired message is a duplicate
	// until the store forgets it. Do not set it below the longest time after which the transport may deliver a message
	// again, outages and replays included. Default 0, the store's default: 24 h in gormstore and memstore, 7 d in
	// redisstore (contract 8.4).
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// Duplicates says how to treat a message that was processed before. Do not use FailDuplicates where the transport
	// redelivers every failed message: a duplicate never stops being one. Do not use LogDuplicates where many are
	// expected. Default SkipDuplicates (contract 8.3).
	Duplicates DuplicatePolicy `yaml:"duplicates" env:"DUPLICATES"`
	// AllowMissingID runs the handler for a message without ID, undeduplicated: each time it comes. It is counted, and
	// logged once per handler. Do not use it for handlers that must not run twice. Default off: the message is refused
	// with an *IDError (contract 4.4).
	AllowMissingID bool `yaml:"allow_missing_id" env:"ALLOW_MISSING_ID"`
	// RequireStore makes it an error at construction to have no store. Do not use it where handlers have to run without
	// one, such as in their tests. Default off: the handlers run for every message, which is logged once (contract
	// 8.5).
	RequireStore bool `yaml:"require_store" env:"REQUIRE_STORE"`
	// Channel names the channel that messages come from, in logs and as the prefix of IDs that are only unique in it
	// (envelope.CorrelationID, envelope.KafkaKey). Without it the prefix is the channel of the message's properties, or
	// the record's topic. It is the namespace of the handler's IDs, too, unless IDNamespace names another: a message
	// that was processed for one channel is not known for another. Without either all messages of the handler are one
	// namespace, across all topics: wrap a handler once for each of its topics where others may write to one of them.
	// Do not change it later: processed messages would be handled again.
	Channel string `yaml:"-" env:"-"`
	// IDNamespace names where message IDs are unique, instead of Channel: handlers of several channels with the same
	// namespace share their processed messages. Do not share one where somebody may write to one of the channels and
	// not to the other: a message of his has another's message of the same ID skipped.
	IDNamespace string `yaml:"-" env:"-"`
	// Logger is the zap logger. Without it nothing is logged, also not that there is no store: do not leave it out in
	// production.
	Logger *zap.Logger `yaml:"-" env:"-"`
	// MeterProvider receives what the handlers count and how long they run, under the names that Inline channels use.
	// Do not set it where the application sets OpenTelemetry's global one (otel.SetMeterProvider): that is the default,
	// and does nothing until it is set. An inbox ignores it and uses its own (contract 8.6).
	MeterProvider metric.MeterProvider `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults of the contract.
func DefaultOptions() Options {
	return Options{Duplicates: SkipDuplicates}
}

// Validate reports every option that is out of range, joined, each by name with its value and what is allowed.
func (o Options) Validate() error {
	if o.Duplicates == "" && o.Retention == 0 && !o.AllowMissingID && !o.RequireStore {
		return errors.New("options are zero: start from idempotent.DefaultOptions()")
	}
	var problems []error
	if o.Retention < 0 {
		problems = append(problems, fmt.Errorf("option Retention = %s: must be 0 (the store's) or more", o.Retention))
	}
	switch o.Duplicates {
	case SkipDuplicates, LogDuplicates, FailDuplicates:
	default:
		problems = append(problems, fmt.Errorf("option Duplicates = %q: must be %s, %s or %s", o.Duplicates,
			SkipDuplicates, LogDuplicates, FailDuplicates))
	}
	return errors.Join(problems...)
}

// config is everything that is declared about a handler.
type config struct {
	Options
	id    envelope.IDStrategy
	hasID bool // id was set, perhaps to the zero strategy
	// composite: the handler's key stands where the channel's name would.
	composite  bool
	keyBy      any      // func(T) (string, error)
	recordBy   any      // func(T) envelope.Record
	legacyKeys []string // not remembered with composite IDs, which no other key has
	log        *zap.Logger
}

func (c config) with(opts []Option) config {
	c = settings.With(c, opts)
	c.log = logging.WithoutStacks(c.Logger)
	return c
}

// Option adjusts a Receiver or, after the Receiver's, one handler: Configure its settings, the others where a message's
// ID comes from. Options are applied in order.
type Option func(*config)

// Configure sets options: set gets those that are set so far, at first DefaultOptions. Options that were loaded from a
// file may be assigned: they keep a Channel, IDNamespace and Logger that were set before, for the Receiver or by an
// inbox, unless they have their own. A nil set does nothing.
func Configure(set func(o *Options)) Option {
	return func(c *config) {
		if set != nil {
			before := c.Options
			set(&c.Options)
			settings.Keep(before, &c.Options)
		}
	}
}

// Identified is a message that knows its ID; an empty ID is a missing one. The inbox's own messages, raw messages and
// records need not implement it. If a type that embeds one of them implements it, this ID counts.
type Identified interface{ MessageID() string }

// Typed is a message that knows its type. The type is stored with the key, for people who inspect the markers. Messages
// of the inbox need not implement it.
type Typed interface{ MessageType() string }

// KeyBy computes the message ID from the message itself, typically from a field of its payload; T is the type that the
// handler takes. If the result is empty, or the error is ErrMissingID, the ID is found as without KeyBy (contract 4.4).
// Any other error refuses the message; a panic is not recovered. find is called concurrently, and must return the same
// ID each time the message is delivered. Do not use it for values that other messages share, such as the ID of the
// entity a message is about: all messages but the first would count as duplicates.
func KeyBy[T any](find func(message T) (string, error)) Option {
	return func(c *config) { c.keyBy = find }
}

// IDFrom finds the ID by a strategy of package envelope, in the headers and coordinates of a handler.Message,
// handler.RawMessage or envelope.Record, or of the record that RecordBy returns. For a record the default is the zero
// IDStrategy: the CloudEvents id, or the header "MessageId" or "id". With envelope.SourceAndID the source is part of
// the ID, too. Do not use it for a handler.Message whose channel has found the ID already: without IDFrom that ID
// counts.
func IDFrom(strategy envelope.IDStrategy) Option {
	return func(c *config) { c.id, c.hasID, c.composite = strategy, true, false }
}

// CompositeID makes the ID "{handler key}:{correlation ID}" from the header of that name, or from "CorrelationId" if
// the name is empty. It takes the same messages as IDFrom. Do not use it where one correlation ID covers several
// messages for the handler: all but the first would count as duplicates (contract 4.4).
func CompositeID(header string) Option {
	return func(c *config) { c.id, c.hasID, c.composite = envelope.CorrelationID(header), true, true }
}

// LegacyKeys are former keys of a renamed handler, the newest first: a message that was processed under one of them is
// skipped, and a processed message is remembered under all of them. So the programs from before and after the rename
// may run side by side. Keep them for as long as Retention. They have no effect with CompositeID, whose IDs contain the
// key, and are an option of one handler. An inbox sets its handlers' legacy keys itself (contract 8.3).
func LegacyKeys(keys ...string) Option {
	return func(c *config) { c.legacyKeys = keys }
}

// RecordBy converts a message of another library to a record; T is the type that the handler takes. For kafka-go use
// kafkaconsumer.RecordOf. record is called concurrently. Do not use it for the inbox's own types, which are known.
func RecordBy[T any](record func(message T) envelope.Record) Option {
	return func(c *config) { c.recordBy = record }
}

// Clock returns the time by which retention is judged. Implementations must be safe for concurrent use.
type Clock = clock.Clock
