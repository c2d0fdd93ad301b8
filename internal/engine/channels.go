package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Mode is how a channel's messages reach its handlers. Inline and Direct are called synchronous.
type Mode int

// The delivery modes.
const (
	Inbox Mode = iota
	Inline
	Direct
)

func (m Mode) String() string {
	return [...]string{Inbox: "Inbox", Inline: "Inline", Direct: "Direct"}[m]
}

// Channel is a declared channel.
type Channel struct {
	Name string
	Mode Mode
	// Kafka is the transport, nil if it has none.
	Kafka *kafkaconsumer.Config
	// Sender is where messages of an outgoing channel leave to, nil for other channels.
	Sender *Sender
	// Namespace is declared by IDNamespace; empty if the channel shares no IDs.
	Namespace string
	// HandlerKeys are the current keys of its handlers in the order of declaration.
	HandlerKeys []string
	// WithoutInbox exempts it from WarnWithoutInbox.
	WithoutInbox bool
	// Markers is the declaration of an Inline channel.
	Markers *Markers

	Acceptor                         acceptor.Options
	MaxRetries, PartitionConcurrency int
	Configured                       bool // it has options for itself, even if they equal the inbox's
}

// Markers is how the handlers of an Inline channel remember messages.
type Markers struct {
	Store    idempotent.Store // nil without OwnStore means the inbox's own, nil with it means none
	OwnStore bool
	Defaults []idempotent.Option
	Handlers []HandlerMarkers
}

// HandlerMarkers is what one handler declares for itself.
type HandlerMarkers struct {
	Key   string
	Store idempotent.Store // nil means the channel's
	Opts  []idempotent.Option
}

// Of returns what is declared for one handler, the zero value if nothing is.
func (m *Markers) Of(key string) HandlerMarkers {
	for _, h := range m.Handlers {
		if h.Key == key {
			return h
		}
	}
	return HandlerMarkers{}
}

// WithoutStore returns those of the keys whose handlers have no store of markers.
func (m *Markers) WithoutStore(keys []string) (without []string) {
	for _, key := range keys {
		if m.OwnStore && m.Store == nil && m.Of(key).Store == nil {
			without = append(without, key)
		}
	}
	return without
}

// stores returns the declared stores, with nil for those left out.
func (m *Markers) stores() []idempotent.Store {
	stores := []idempotent.Store{m.Store}
	for _, h := range m.Handlers {
		stores = append(stores, h.Store)
	}
	return stores
}

func (cfg *Config) channelNames() []string {
	names := make([]string, len(cfg.Channels))
	for i, c := range cfg.Channels {
		names[i] = c.Name
	}
	return names
}

// synchronousChannels returns the names of the channels that take messages from their transport only.
func (cfg *Config) synchronousChannels() (names []string) {
	for _, c := range cfg.Channels {
		if c.Mode != Inbox {
			names = append(names, c.Name)
		}
	}
	return names
}

// sharedNamespaces returns the declared namespaces by channel. Channels that share no IDs are left out.
func (cfg *Config) sharedNamespaces() map[string]string {
	shared := map[string]string{}
	for _, c := range cfg.Channels {
		if c.Namespace != "" {
			shared[c.Name] = c.Namespace
		}
	}
	return shared
}

// ownPolicies returns the acceptor's options of each channel that has options for itself.
func (cfg *Config) ownPolicies() map[string]acceptor.Options {
	own := map[string]acceptor.Options{}
	for _, c := range cfg.Channels {
		if c.Configured {
			own[c.Name] = c.Acceptor
		}
	}
	return own
}

// maxRetries returns MaxRetries, by handler key, of the channels that have options for themselves.
func (cfg *Config) maxRetries() map[string]int {
	own := map[string]int{}
	for _, c := range cfg.Channels {
		for _, key := range c.HandlerKeys {
			if c.Configured {
				own[key] = c.MaxRetries
			}
		}
	}
	return own
}

// newRunners makes the runners of synchronous channels' handlers, by channel. The runners outlive starts and stops, so
// that calls that ignored their cancelled context stay known.
func (e *Engine) newRunners() map[string]*synchronous.Runner {
	runners := map[string]*synchronous.Runner{}
	p := e.cfg.Processor
	for _, c := range e.cfg.Channels {
		if c.Mode == Inbox {
			continue
		}
		runners[c.Name] = synchronous.New(synchronous.Config{
			Channel: c.Name, Registry: e.cfg.Registry, DB: e.cfg.DB, Paused: e.processor.Paused,
			Memories: e.memories[c.Name], MaxRetries: c.MaxRetries, Concurrency: c.PartitionConcurrency,
			HandlerTimeout: p.HandlerTimeout, MaxRetryDelay: p.MaxRetryDelay, StatementTimeout: p.StatementTimeout,
			StuckHandlerGrace: p.StuckHandlerGrace, TxIsolation: p.TxIsolation, Running: e.running,
			Backoff: e.cfg.Backoff, Middleware: e.cfg.Middleware, Hooks: e.cfg.Hooks,
			Clock: e.cfg.Clock, Logger: e.log, Counters: e.counters, Instruments: e.instruments,
		})
	}
	return runners
}

// warnWithoutInbox logs the channels that consume without an inbox, where the options ask for that.
func (e *Engine) warnWithoutInbox() {
	for _, c := range e.cfg.Channels {
		if e.cfg.WarnWithoutInbox && c.Mode != Inbox && !c.WithoutInbox {
			e.log.Warn("inbox: channel consumes without an inbox", zap.String(telemetry.FieldChannel, c.Name),
				zap.Stringer(telemetry.FieldMode, c.Mode))
		}
	}
}

// pausedSynchronous returns the keys of the paused handlers that a synchronous channel waits for, in order of
// declaration.
func (e *Engine) pausedSynchronous(c Channel) (keys []string) {
	for _, key := range c.HandlerKeys {
		if h, known := e.cfg.Registry.Lookup(key); known && e.processor.Paused(h) {
			keys = append(keys, h.Key())
		}
	}
	return keys
}

// idNamespace returns the namespace in which the channel's message IDs are unique.
func (c Channel) idNamespace() string { return cmp.Or(c.Namespace, c.Name) }

// markerWait is how long a message waits in the database for another run of the same message. While it waits, it holds
// a slot and a connection, and delays a stop. The message then tries again, after a pause that holds neither.
const markerWait = time.Second

// memories are the handlers' markers in Inline channels, by channel.
type memories map[string]map[*handler.Handler]*synchronous.Memory

// newMemories makes the handlers' memories of all Inline channels.
func (cfg *Config) newMemories(log *zap.Logger) (memories, error) {
	all := memories{}
	var errs []error
	for _, c := range cfg.Channels {
		if c.Mode != Inline {
			continue
		}
		var err error
		if all[c.Name], err = cfg.channelMemories(c, log); err != nil {
			errs = append(errs, problems.Prefix(fmt.Sprintf("channel %q: ", c.Name), err))
		}
	}
	return all, errors.Join(errs...)
}

func (cfg *Config) channelMemories(c Channel, log *zap.Logger) (map[*handler.Handler]*synchronous.Memory, error) {
	channelStore := c.Markers.Store
	if !c.Markers.OwnStore {
		own, err := gormstore.New(cfg.DB, func(o *gormstore.Options) {
			o.Schema, o.TablePrefix = cfg.Naming.Schema, cfg.Naming.Prefix
			o.Clock = cfg.Clock
			o.StatementTimeout, o.LockTimeout = cfg.Processor.StatementTimeout, markerWait
		})
		if err != nil {
			return nil, err
		}
		channelStore = own
	}
	memories := map[*handler.Handler]*synchronous.Memory{}
	var errs []error
	for _, key := range c.HandlerKeys {
		h, _ := cfg.Registry.Lookup(key)
		declared := c.Markers.Of(key)
		store := cmp.Or(declared.Store, channelStore)
		m, err := synchronous.NewMemory(cfg.DB, store, h, c.receiverOptions(log), declared.Opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		memories[h] = m
	}
	return memories, errors.Join(errs...)
}

// receiverOptions returns the options of package idempotent that all handlers of a channel have. Messages without ID
// that its decoder lets pass then run without deduplication.
func (c Channel) receiverOptions(log *zap.Logger) []idempotent.Option {
	return append([]idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
		o.Channel, o.IDNamespace, o.Logger = c.Name, c.idNamespace(), log
		o.AllowMissingID = o.AllowMissingID || c.Kafka != nil && c.Kafka.Decoder.AllowMissingID
	})}, c.Markers.Defaults...)
}

// prepareInline checks the marker stores of Inline channels, and warns of missing ones and of markers that accumulate.
func (e *Engine) prepareInline(ctx context.Context) error {
	accumulating := []string{}
	for _, c := range e.cfg.Channels {
		if c.Mode != Inline {
			continue
		}
		if keys := c.Markers.WithoutStore(c.HandlerKeys); len(keys) > 0 {
			e.log.Warn("inbox: inline channel has no store of processed messages: handlers run each time a message comes; give inbox.InlineStore a store",
				zap.String(telemetry.FieldChannel, c.Name), zap.Strings(telemetry.FieldHandlerKeys, keys))
		}
		for _, store := range c.Markers.stores() {
			if err := checkStore(ctx, store); err != nil {
				return fmt.Errorf("channel %q: %w", c.Name, err)
			}
		}
		if !c.Markers.OwnStore {
			accumulating = append(accumulating, c.Name)
		}
	}
	if len(accumulating) > 0 && !e.cfg.Cleanup.SweepMarkers {
		e.log.Warn("inbox: option SweepMarkers is off: markers of inline channels accumulate",
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

// keepsMarkers reports whether an Inline channel keeps markers in the tables of the inbox on db, where cleanup may
// sweep them.
func (c Channel) keepsMarkers(db *gorm.DB) bool {
	return !c.Markers.OwnStore || slices.ContainsFunc(c.Markers.stores(), func(store idempotent.Store) bool {
		tables, ok := store.(*gormstore.Store)
		return ok && tables.Joins(db)
	})
}
