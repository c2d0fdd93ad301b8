package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/engine"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// channel is a declared stream of messages: where they come from, and which handlers take which types.
type channel struct {
	name          string
	subscriptions []subscription
	kafka         []kafkaconsumer.Config // more than one is an error
	mode          engine.Mode
	declaredModes []engine.Mode    // more than one is an error
	markers       *inlineConfig    // nil unless it is in Inline mode
	outgoing      *outgoingChannel // nil unless its messages leave
	namespaces    []string         // declared by IDNamespace; more than one is an error
	withoutInbox  bool             // exempt from ConsumeChannelInboxRequirement
	configure     []func(o *ChannelOptions)
	options       ChannelOptions // the inbox's, changed by configure; set by config.apply
	injections    []*injection
	injecting     bool                    // options of an injection are being applied
	values        map[*injection]injected // nil while the Fx graph is not known
	problems      []error
}

type subscription struct {
	typ      string
	spec     *HandlerSpec
	injected bool // by an option that Inject or InjectChannel returned
}

// ChannelOption declares one thing about a channel.
type ChannelOption func(*channel)

// Channel declares a channel: its handlers by On, and its transport, if it has one. A channel without a transport takes
// the messages that the application accepts by Accept and AcceptTx. A channel needs at least one handler.
//
// Message IDs are unique within the channel. A producer that may write to one of its topics can use up IDs of the
// others: give topics of other producers another channel. Do not change the name without IDNamespace, which keeps
// stored messages known.
func Channel(name string, opts ...ChannelOption) Option {
	return func(cfg *config) {
		c := &channel{name: name, values: cfg.values, injecting: cfg.injecting}
		applyAll(opts, c)
		cfg.injections = append(cfg.injections, c.injections...)
		cfg.problems = append(cfg.problems, c.problems...)
		cfg.channels = append(cfg.channels, c)
	}
}

// On gives the channel's messages of one type to handlers; each gets its own status row and fails, retries and
// completes by itself (contract 4.2). The type is compared as it is: there are no wildcards.
func On(messageType string, handlers ...*HandlerSpec) ChannelOption {
	return func(c *channel) {
		if messageType == registry.AnyType {
			c.problems = append(c.problems, noWildcard(c.name, "On"))
		}
		c.subscribe(messageType, handlers)
	}
}

// OnAny gives the channel's messages of every type to handlers, as On does for one type, so none is unrouted. A message
// still needs a type: give plain records one by Decoder.Type. OnAny beside On is an error at start. Do not use it where
// handlers tell types apart by themselves to call different code: On does that (contract 4.2).
func OnAny(handlers ...*HandlerSpec) ChannelOption {
	return func(c *channel) { c.subscribe(registry.AnyType, handlers) }
}

func (c *channel) subscribe(messageType string, handlers []*HandlerSpec) {
	for _, h := range handlers {
		c.subscriptions = append(c.subscriptions, subscription{messageType, h, c.injecting})
	}
}

// noWildcard is the error of a type that looks like a wildcard.
func noWildcard(channel, function string) error {
	return fmt.Errorf("channel %q: inbox.%s has type %q, which is no wildcard: declare handlers of all types by inbox.OnAny",
		channel, function, registry.AnyType)
}

// Kafka makes the channel consume Kafka topics: records are persisted, or with Inline and Direct handled, before their
// offsets are committed (contract 7). Fields of cfg left zero get their defaults. A broker that is down, or a missing
// topic, does not fail the start: it is logged, shown by Health and waited for.
func Kafka(cfg kafkaconsumer.Config) ChannelOption {
	return func(c *channel) { c.kafka = append(c.kafka, cfg) }
}

// IDNamespace shares the channel's message IDs with every channel that names the same namespace: a message that came on
// one of them is a duplicate on the others, which add their handlers, and these run the content that came first. By
// default each channel has its own IDs (contract 4.4). With its old name as the namespace, a renamed channel still
// knows what it has stored, in Inline mode too. Every channel that shares has to declare it. Inline channels cannot
// share, Direct channels have no namespace. IDs made of a correlation ID or a Kafka key begin with the channel's name,
// and never match across channels.
//
// Do not share IDs between channels that different parties may write to: a producer on one chooses what the others'
// handlers run, and the true message is taken for a duplicate. Do not give a namespace that is a channel's name in
// another program of the inbox: a start checks only its own program's channels. Do not change a channel's namespace
// later: redelivered messages are then new.
func IDNamespace(name string) ChannelOption {
	return func(c *channel) { c.namespaces = append(c.namespaces, name) }
}

// Direct runs the channel's handlers on its Kafka records without an inbox: record after record in each partition,
// PartitionConcurrency partitions at once, and the offset moves past a record when all handlers of its messages are
// done. Nothing is stored, so nothing is deduplicated, replayed or shown, and a crash, a rebalance or a lost commit
// runs a record's handlers again, from attempt 1. A message without ID gets its coordinates as ID.
//
// A failed handler is retried while its partition waits, without those that have succeeded. After MaxRetries attempts,
// or handler.Poison, the record is bad, and BadRecords applies. Middleware, codecs, backoff, HandlerTimeout, OnAttempt
// and OnPoisoned work as in the inbox. A Tx handler's transaction is committed before the offset: its writes happen as
// a whole, at least once. HaltAtBadRecords above 1 has no effect, because records come one by one.
// AcceptRejected runs a rejected record through all of its handlers again (contract 7.1, 7.4).
//
// A rebalance or a stop starts no further handler. Those that run get DrainTimeout, at most three quarters of Stop's
// time for consumers; then they are cancelled, and the record's handlers all run again. The next call for the partition
// waits up to StuckHandlerGrace for a handler that ignores its cancelled context, which Health shows.
//
// Direct requires Kafka. Batch handlers, Ordered, TxGroup, CircuitBreaker, Concurrency, FleetConcurrency, Rate, RateBy,
// Retention and IdempotencyKey are not supported. Statuses that the inbox stored before the channel became Direct are
// still processed.
//
// Do not use it for messages that must not be lost or handled twice. Do not use it for handlers that fail for long: a
// failing message holds up all that come after it in its partition (contract 1, 7.6).
func Direct() ChannelOption { return func(c *channel) { c.setMode(engine.Direct) } }

// AllowConsumeWithoutInbox exempts the channel from ConsumeChannelInboxRequirement, and from nothing else. Do not use
// it to silence the check: it records a decision that this channel needs no inbox (contract 7.7).
func AllowConsumeWithoutInbox() ChannelOption { return func(c *channel) { c.withoutInbox = true } }

// ChannelOptions are the options of an inbox that each of its channels may have for itself.
type ChannelOptions struct {
	// Acceptor says how to treat the channel's records that are no message for a handler. All channels that share IDs
	// must have the same DifferingContent; it has no effect on Inline and Direct channels. BadRecords, HaltAtBadRecords
	// and OnGap have none without a transport.
	Acceptor acceptor.Options `yaml:",inline"`
	// MaxRetries is processor.Options.MaxRetries for the channel's handlers without a handler.MaxRetries. Do not set it
	// for a single handler.
	MaxRetries int `yaml:"max_retries" env:"MAX_RETRIES"`
	// PartitionConcurrency is how many partitions of this Inline or Direct channel may run a handler at once. Do not set
	// it on an Inbox channel: there handler.Concurrency limits each handler (contract 7.6).
	PartitionConcurrency int `yaml:"partition_concurrency" env:"PARTITION_CONCURRENCY"`
}

// ConfigureChannel sets options for this channel alone. set gets the inbox's options, in any order of declaration. A
// bad value fails the start with an error that names channel and option, and so does an option that has no effect on
// the channel. A nil set does nothing. Do not use it for a single handler: handler.MaxRetries and its siblings do
// (contract 9).
func ConfigureChannel(set func(o *ChannelOptions)) ChannelOption {
	return func(c *channel) {
		if set != nil {
			c.configure = append(c.configure, set)
		}
	}
}

// setMode declares the channel's delivery mode.
func (c *channel) setMode(d engine.Mode) {
	c.declaredModes = append(c.declaredModes, d)
	c.mode = d
}

// ofChannels returns the options that a channel has unless it changes them.
func (o Options) ofChannels() ChannelOptions {
	return ChannelOptions{Acceptor: o.Acceptor, MaxRetries: o.Processor.MaxRetries,
		PartitionConcurrency: o.PartitionConcurrency}
}

// setOptions gives the channel the inbox's options, and lets it change them.
func (c *channel) setOptions(inbox Options) {
	c.options = inbox.ofChannels()
	for _, set := range c.configure {
		set(&c.options)
	}
}

// idNamespace returns the namespace in which the channel's message IDs are unique.
func (c *channel) idNamespace() string {
	if len(c.namespaces) > 0 {
		return c.namespaces[0]
	}
	return c.name
}

// engine returns the declaration for the engine. It may be invalid.
func (c *channel) engine() engine.Channel {
	e := engine.Channel{Name: c.name, Mode: c.mode, WithoutInbox: c.withoutInbox, Markers: c.markers,
		HandlerKeys: c.handlerKeys(), Acceptor: c.options.Acceptor, MaxRetries: c.options.MaxRetries,
		PartitionConcurrency: c.options.PartitionConcurrency, Configured: len(c.configure) > 0}
	if len(c.kafka) > 0 {
		e.Kafka = &c.kafka[0]
	}
	if len(c.namespaces) > 0 {
		e.Namespace = c.namespaces[0]
	}
	return e
}

// handlerKeys returns the keys of the declared handlers.
func (c *channel) handlerKeys() (keys []string) {
	for _, s := range c.subscriptions {
		if s.spec != nil {
			keys = append(keys, s.spec.key)
		}
	}
	return keys
}

// namesIDs reports whether the channel's message IDs begin with its name.
func (c *channel) namesIDs() bool {
	return slices.ContainsFunc(c.kafka, func(cfg kafkaconsumer.Config) bool { return cfg.Decoder.ID.OfChannel() })
}

// subscriptionsOf returns the registry's subscriptions. Handlers of the Fx graph come from resolved; those that it
// lacks stay as declared, without a function.
func subscriptionsOf(channels []*channel, resolved map[*HandlerSpec]*handler.Handler) []registry.Subscription {
	var subs []registry.Subscription
	for _, c := range channels {
		for _, s := range c.subscriptions {
			if s.spec == nil {
				continue
			}
			h := s.spec.handler
			if r := resolved[s.spec]; r != nil {
				h = r
			}
			subs = append(subs, registry.Subscription{Channel: c.name, Type: s.typ, Handler: h,
				Synchronous: c.mode != engine.Inbox})
		}
	}
	return subs
}

// registrations lists the handler keys of an inbox for registry.CheckKeys.
func registrations(inbox string, channels []*channel) []registry.Registration {
	var all []registry.Registration
	for _, c := range channels {
		for _, s := range c.subscriptions {
			if s.spec == nil {
				continue
			}
			for i, key := range s.spec.handler.Keys() {
				all = append(all, registry.Registration{Inbox: inbox, Channel: c.name, Type: s.typ, Key: key, Legacy: i > 0})
			}
		}
	}
	return all
}

// membership is a channel's consumer group.
type membership struct {
	inbox, channel string
	kafka          kafkaconsumer.Config
}

// memberships lists an inbox's consumer groups for checkGroups.
func memberships(inbox string, channels []*channel) []membership {
	var all []membership
	for _, c := range channels {
		for _, cfg := range c.kafka {
			all = append(all, membership{inbox, c.name, cfg})
		}
	}
	return all
}

// namespaceProblems returns the errors in IDNamespace. A channel shares its IDs only if it declares so itself, so that
// no other channel's declaration changes which messages are its duplicates.
func (c *channel) namespaceProblems(channels []*channel) []error {
	var found problems.List
	if len(c.namespaces) > 1 {
		found.Addf("channel %q has inbox.IDNamespace twice", c.name)
	}
	for _, name := range c.namespaces {
		if !isName(name) {
			found.Addf("channel %q: inbox.IDNamespace %q is not %s", c.name, name, nameRule)
		}
		if c.mode == engine.Direct {
			found.Addf("channel %q is in %s mode, where inbox.IDNamespace has nothing to share: leave it out", c.name, engine.Direct)
			continue
		}
		for _, other := range channels {
			switch {
			case other == c, len(c.injections)+len(other.injections) > 0 && c.values == nil: // it may get a namespace
			case other.name == name && len(other.namespaces) == 0:
				found.Addf("channel %q shares the IDs of channel %q, which does not say so: give both inbox.IDNamespace(%q)",
					c.name, name, name)
			case other.name == name && other.idNamespace() != name:
				found.Addf("channel %q: inbox.IDNamespace is the name of channel %q, whose IDs are in namespace %q: give another",
					c.name, name, other.idNamespace())
			case other.idNamespace() == name && c.mode == engine.Inline:
				found.Addf("channel %q is in %s mode and has namespace %q in common with channel %q, but cannot share IDs: give it a namespace of its own",
					c.name, engine.Inline, name, other.name)
			case other.idNamespace() == name && strings.HasPrefix(other.name, c.name+":") && c.namesIDs() && other.namesIDs():
				found.Addf("channels %q and %q share namespace %q and begin their IDs with their names, so that %q could be an ID of both: rename one, or use another ID strategy",
					c.name, other.name, name, other.name+":1")
			}
		}
	}
	return found
}

// nameRule describes the names that isName accepts. The name is stored with every message.
const nameRule = "1 to 200 characters of valid UTF-8 without NUL"

func isName(name string) bool { return name != "" && store.CheckText(name, columns.MaxChannel) == nil }

// validateModes returns what the channels' delivery modes do not support.
func (cfg *config) validateModes(subscriptions []registry.Subscription) error {
	var found problems.List
	modes := map[string]engine.Mode{} // of the channels whose mode is known
	for _, c := range cfg.channels {
		if !(cfg.incomplete() && len(c.injections) > 0) {
			modes[c.name] = c.mode
		}
		if c.mode == engine.Inbox {
			continue
		}
		if len(c.declaredModes) > 1 {
			found.Addf("channel %q has several delivery modes %v: declare one of inbox.Inline and inbox.Direct, once",
				c.name, c.declaredModes)
		}
		if len(c.kafka) == 0 && !(cfg.incomplete() && len(c.injections) > 0) {
			found.Addf("channel %q is in %s mode and has no transport: declare inbox.Kafka, or leave inbox.%[2]s out",
				c.name, c.mode)
		}
		if cfg.options.ConsumeChannelInboxRequirement == RequirementFail && !c.withoutInbox && !cfg.optionsOpen() {
			found.Addf("channel %q consumes in %s mode, and option ConsumeChannelInboxRequirement is %s: use the inbox, or declare inbox.AllowConsumeWithoutInbox",
				c.name, c.mode, RequirementFail)
		}
		if slices.ContainsFunc(c.kafka, func(cfg kafkaconsumer.Config) bool { return cfg.Decoder.HasNotBefore() }) {
			found.Addf("channel %q is in %s mode, where the partition would wait for a message's time: leave NotBefore and NotBeforeHeader of the Decoder out",
				c.name, c.mode)
		}
		if c.markers != nil {
			found = append(found, c.markerProblems(cfg)...)
		}
	}
	for _, s := range subscriptions {
		mode, known := modes[s.Channel]
		if !known {
			continue
		}
		for _, option := range unsupportedOptions(s.Handler, mode) {
			found.Addf("channel %q, type %q, handler %q: %s is not supported in %s mode",
				s.Channel, s.Type, s.Handler.Key(), option, mode)
		}
	}
	return errors.Join(found...)
}

// unsupportedOptions names the options of a handler that the mode does not support, because it has no stored statuses
// or no markers.
func unsupportedOptions(h *handler.Handler, mode engine.Mode) []string {
	_, breaks := h.CircuitBreaker()
	_, burst := h.Rate()
	withoutInbox := mode != engine.Inbox
	var options []string
	for _, o := range []struct {
		name        string
		unsupported bool
	}{
		{"a batch handler", withoutInbox && h.TakesBatches()},
		{"Ordered", withoutInbox && h.Ordered()},
		{"TxGroup", withoutInbox && h.TxGroup() > 1},
		{"Concurrency", withoutInbox && h.Concurrency() > 0},
		{"FleetConcurrency", withoutInbox && h.FleetConcurrency() > 0},
		{"Rate", withoutInbox && burst > 0 && h.RateKey() == nil},
		{"RateBy", withoutInbox && h.RateKey() != nil},
		{"Retention", mode == engine.Direct && h.Retention() > 0},
		{"CircuitBreaker", withoutInbox && breaks},
		{"NotBefore", withoutInbox && h.NotBefore() != nil},
		{"IdempotencyKey", mode != engine.Inline && h.IdempotencyKey() != nil},
	} {
		if o.unsupported {
			options = append(options, o.name)
		}
	}
	return options
}

// validateChannels returns what is wrong with the channels themselves. The registry checks the handlers, and
// validateKafka the transports.
func (cfg *config) validateChannels() error {
	var found problems.List
	if len(cfg.channels) == 0 && len(cfg.added) == 0 && !(cfg.incomplete() && (cfg.extended || cfg.injects)) {
		if cfg.feature {
			found.Addf("inbox.Extend has no channels and no handlers")
		} else {
			found.Addf("it has no channels: declare them with inbox.Channel")
		}
	}
	for _, a := range cfg.added {
		if !cfg.incomplete() {
			found = append(found, noChannel(a.channel))
		}
	}
	for _, c := range cfg.all() {
		for _, s := range c.subscriptions {
			switch {
			case s.spec == nil:
				found.Addf("channel %q, type %q: a handler is nil", c.name, s.typ)
			case s.spec.graph != nil && !cfg.withFx:
				found.Addf("channel %q, type %q, handler %q: it comes from the Fx graph (%s); without Fx use inbox.Func or inbox.Tx",
					c.name, s.typ, s.spec.key, s.spec.graph.typ)
			case s.spec.graph != nil && s.injected:
				found.Addf("channel %q, type %q, handler %q: inbox.From within inbox.Inject: take the %s as a parameter, and use inbox.Func or inbox.Tx",
					c.name, s.typ, s.spec.key, s.spec.graph.typ)
			}
		}
	}
	seen := map[string]bool{}
	for _, c := range cfg.channels {
		found = append(found, c.namespaceProblems(cfg.channels)...)
		found = append(found, c.optionProblems(cfg))
		if !isName(c.name) {
			found.Addf("channel %q: the name is not %s", c.name, nameRule)
		}
		if seen[c.name] {
			found.Addf("channel %q is declared twice", c.name)
		}
		seen[c.name] = true
		if one := slices.IndexFunc(c.subscriptions, ofOneType); one >= 0 && slices.ContainsFunc(c.subscriptions, ofAnyType) {
			found.Addf("channel %q has inbox.OnAny and handlers for type %q: use On for all types, or OnAny alone", c.name,
				c.subscriptions[one].typ)
		}
		if len(c.kafka) > 1 {
			found.Addf("channel %q has inbox.Kafka twice: list all topics in one", c.name)
		}
		if len(c.subscriptions) == 0 && !cfg.handlersOpen(c) {
			found.Addf("channel %q has no handlers: declare them with inbox.On", c.name)
		}
	}
	return errors.Join(found...)
}

func ofAnyType(s subscription) bool { return s.typ == registry.AnyType }
func ofOneType(s subscription) bool { return !ofAnyType(s) }

// optionProblems returns the errors in the channel's own options. Options.Validate checks the values that equal the
// inbox's.
func (c *channel) optionProblems(cfg *config) error {
	theirs, own := cfg.options.ofChannels(), c.options
	var found problems.List
	if own.Acceptor != theirs.Acceptor {
		found = append(found, own.Acceptor.Validate())
	}
	if own.MaxRetries < 0 && own.MaxRetries != theirs.MaxRetries {
		found.Addf("option MaxRetries = %d: must be 0 or more", own.MaxRetries)
	}
	if own.PartitionConcurrency < 1 && own.PartitionConcurrency != theirs.PartitionConcurrency {
		found.Addf("option PartitionConcurrency = %d: must be 1 or more", own.PartitionConcurrency)
	}
	stores, consumes := c.mode == engine.Inbox, len(c.kafka) > 0
	for _, option := range []struct {
		name            string
		changed, useful bool
		need            string
	}{
		{"PartitionConcurrency", own.PartitionConcurrency != theirs.PartitionConcurrency, !stores, "inbox.Inline or inbox.Direct"},
		{"DifferingContent", own.Acceptor.DifferingContent != theirs.Acceptor.DifferingContent, stores, "Inbox mode"},
		{"BadRecords", own.Acceptor.BadRecords != theirs.Acceptor.BadRecords, consumes, "inbox.Kafka"},
		{"HaltAtBadRecords", own.Acceptor.HaltAtBadRecords != theirs.Acceptor.HaltAtBadRecords, consumes, "inbox.Kafka"},
		{"OnGap", own.Acceptor.OnGap != theirs.Acceptor.OnGap, consumes, "inbox.Kafka"},
	} {
		if option.changed && !option.useful && !cfg.channelOpen(c) {
			found.Addf("option %s of inbox.ConfigureChannel needs %s: leave it out", option.name, option.need)
		}
	}
	for _, other := range cfg.channels {
		if other.name < c.name && other.idNamespace() == c.idNamespace() && !cfg.channelOpen(c) && !cfg.channelOpen(other) &&
			other.options.Acceptor.DifferingContent != own.Acceptor.DifferingContent {
			found.Addf("option DifferingContent = %q: must be that of channel %q (%q), with which it shares its IDs",
				own.Acceptor.DifferingContent, other.name, other.options.Acceptor.DifferingContent)
		}
	}
	return problems.Prefix(fmt.Sprintf("channel %q: ", c.name), errors.Join(found...))
}

// validateKafka returns what is wrong with the channels' transports.
func (cfg *config) validateKafka() error {
	var found problems.List
	for _, c := range cfg.channels {
		policy := c.options.Acceptor.BadRecords
		for _, k := range c.kafka {
			err := k.Validate()
			switch {
			case cfg.channelOpen(c):
			case policy == acceptor.BadRecordDeadLetter && k.DeadLetterTopic == "":
				err = errors.Join(err, fmt.Errorf("option DeadLetterTopic is empty: must be a topic with BadRecords %s", policy))
			case policy != acceptor.BadRecordDeadLetter && k.DeadLetterTopic != "" && !k.PublishPoisoned:
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic = %q: must be empty while BadRecords is %s and PublishPoisoned is off",
						k.DeadLetterTopic, policy))
			}
			found = append(found, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return errors.Join(found...)
}

// checkGroups refuses two channels of one process in one consumer group: Kafka would give each partition to only one of
// them, and the other's handlers would never see its records. Groups are in one cluster if they share a broker. The
// error joins all pairs in a fixed order.
func checkGroups(all []membership) error {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b membership) int { return strings.Compare(a.inbox, b.inbox) })
	var found problems.List
	for i, a := range all {
		for _, b := range all[i+1:] {
			shared := slices.ContainsFunc(a.kafka.Brokers, func(broker string) bool {
				return slices.Contains(b.kafka.Brokers, broker)
			})
			sameChannel := a.inbox == b.inbox && a.channel == b.channel // Kafka declared twice, which validateChannels reports
			if shared && !sameChannel && a.kafka.GroupID == b.kafka.GroupID {
				found.Addf("channel %q of inbox %q and channel %q of inbox %q have the same GroupID %q: each must have its own, or either would get the records of some partitions only",
					a.channel, a.inbox, b.channel, b.inbox, a.kafka.GroupID)
			}
		}
	}
	return errors.Join(found...)
}

// exitHalted is the application's exit code after ShutdownOnHalt.
const exitHalted = 1

var errNoShutdown = errors.New("option ShutdownOnHalt requires Fx: use OnHalt of kafkaconsumer.Config to end the application")
