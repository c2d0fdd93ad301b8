package engine

import (
	"cmp"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/idempotent"
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
