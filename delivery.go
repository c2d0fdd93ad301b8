package inbox

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// deliveryMode is how a channel's messages reach its handlers. Inline and Direct are called synchronous.
type deliveryMode int

const (
	modeInbox deliveryMode = iota
	modeInline
	modeDirect
)

func (d deliveryMode) String() string {
	switch d {
	case modeInline:
		return "Inline"
	case modeDirect:
		return "Direct"
	default:
		return "Inbox"
	}
}

// setMode declares the channel's delivery mode.
func (c *channel) setMode(d deliveryMode) {
	c.declaredModes = append(c.declaredModes, d)
	c.mode = d
}

// Direct runs the channel's handlers on its Kafka records without an inbox: record after record in each partition,
// PartitionConcurrency partitions at once, and the offset moves past a record when all handlers of its messages are
// done. Nothing is stored, so nothing is deduplicated, replayed or shown, and a crash, a rebalance or a lost commit
// runs a record's handlers again, from attempt 1. A message without ID gets its coordinates as ID.
//
// A failed handler is retried while its partition waits, without those that have succeeded. After MaxRetries attempts,
// or handler.Poison, the record is bad, and BadRecords applies. Middleware, codecs, backoff, HandlerTimeout, OnAttempt
// and OnPoisoned work as in the inbox. A Tx handler's transaction is committed before the offset: its writes happen as
// a whole, at least once. HaltAtBadRecords above 1 has no effect, because records come one by one. AcceptRejected takes
// no rejected record while the channel is Direct: publish it again (contract 7.1, 7.4).
//
// A rebalance or a stop starts no further handler. Those that run get DrainTimeout, at most three quarters of Stop's
// time for consumers; then they are cancelled, and the record's handlers all run again. The next call for the partition
// waits up to StuckHandlerGrace for a handler that ignores its cancelled context, which Health shows.
//
// Direct requires Kafka. Batch handlers, Ordered, TxGroup, CircuitBreaker, Concurrency, Retention and IdempotencyKey
// are not supported. Statuses that the inbox stored before the channel became Direct are still processed.
//
// Do not use it for messages that must not be lost or handled twice. Do not use it for handlers that fail for long: a
// failing message holds up all that come after it in its partition (contract 1, 7.6).
func Direct() ChannelOption { return func(c *channel) { c.setMode(modeDirect) } }

// AllowConsumeWithoutInbox exempts the channel from ConsumeChannelInboxRequirement, and from nothing else. Do not use
// it to silence the check: it records a decision that this channel needs no inbox (contract 7.7).
func AllowConsumeWithoutInbox() ChannelOption { return func(c *channel) { c.withoutInbox = true } }

// validateModes returns what the channels' delivery modes do not support.
func (cfg *config) validateModes(subscriptions []registry.Subscription) error {
	var problems []error
	modes := map[string]deliveryMode{} // of the synchronous channels
	for _, c := range cfg.channels {
		if c.mode == modeInbox {
			continue
		}
		modes[c.name] = c.mode
		if len(c.declaredModes) > 1 {
			problems = append(problems,
				fmt.Errorf("channel %q has several delivery modes %v: declare one of inbox.Inline and inbox.Direct, once", c.name,
					c.declaredModes))
		}
		if len(c.kafka) == 0 {
			problems = append(problems,
				fmt.Errorf("channel %q is in %s mode and has no transport: declare inbox.Kafka, or leave inbox.%[2]s out", c.name,
					c.mode))
		}
		if cfg.options.ConsumeChannelInboxRequirement == RequirementFail && !c.withoutInbox {
			problems = append(problems,
				fmt.Errorf("channel %q consumes in %s mode, and option ConsumeChannelInboxRequirement is %s: use the inbox, or declare inbox.AllowConsumeWithoutInbox",
					c.name, c.mode, RequirementFail))
		}
		if c.inline != nil {
			problems = append(problems, c.inline.problems(c, cfg.options.ConsumeChannelInboxRequirement)...)
		}
	}
	for _, s := range subscriptions {
		mode := modes[s.Channel] // modeInbox if it is missing
		for _, option := range unsupportedOptions(s.Handler, mode) {
			problems = append(problems, fmt.Errorf("channel %q, type %q, handler %q: %s is not supported in %s mode", s.Channel,
				s.Type, s.Handler.Key(), option, mode))
		}
	}
	return errors.Join(problems...)
}

// unsupportedOptions names the options of a handler that need what the mode lacks: stored statuses, or markers.
func unsupportedOptions(h *handler.Handler, mode deliveryMode) []string {
	_, breaks := h.CircuitBreaker()
	withoutInbox := mode != modeInbox
	var options []string
	for _, o := range []struct {
		name        string
		unsupported bool
	}{
		{"a batch handler", withoutInbox && h.TakesBatches()},
		{"Ordered", withoutInbox && h.Ordered()},
		{"TxGroup", withoutInbox && h.TxGroup() > 1},
		{"Concurrency", withoutInbox && h.Concurrency() > 0},
		{"Retention", mode == modeDirect && h.Retention() > 0},
		{"CircuitBreaker", withoutInbox && breaks},
		{"IdempotencyKey", mode != modeInline && h.IdempotencyKey() != nil},
	} {
		if o.unsupported {
			options = append(options, o.name)
		}
	}
	return options
}

// newRunners makes what runs the handlers of synchronous channels, by channel. The runners outlive starts and stops, so
// that calls that ignored their cancelled context stay known.
func (ib *Inbox) newRunners() map[string]*synchronous.Runner {
	runners := map[string]*synchronous.Runner{}
	o := ib.cfg.options
	for _, c := range ib.cfg.channels {
		if c.mode == modeInbox {
			continue
		}
		cfg := synchronous.Config{
			Channel: c.name, Registry: ib.registry, DB: ib.db, Paused: ib.processor.Paused,
			MaxRetries: o.Processor.MaxRetries, Concurrency: o.PartitionConcurrency,
			HandlerTimeout: o.Processor.HandlerTimeout, MaxRetryDelay: o.Processor.MaxRetryDelay,
			StatementTimeout: o.Processor.StatementTimeout, StuckHandlerGrace: o.Processor.StuckHandlerGrace,
			Running:     ib.running,
			TxIsolation: o.Processor.TxIsolation,
			Backoff:     ib.cfg.options.Backoff, Middleware: ib.cfg.options.Middleware, Hooks: ib.cfg.options.Hooks,
			Clock: ib.cfg.clock, Logger: ib.log, Counters: ib.counters, Instruments: ib.instruments,
		}
		if c.mode == modeInline {
			cfg.Memories = ib.memories[c.name]
		}
		runners[c.name] = synchronous.New(cfg)
	}
	return runners
}

// synchronousChannels returns the names of the channels that take messages from their transport only.
func synchronousChannels(channels []*channel) []string {
	var names []string
	for _, c := range channels {
		if c.mode != modeInbox {
			names = append(names, c.name)
		}
	}
	return names
}

// warnWithoutInbox logs the channels that consume without an inbox, where the options ask for that.
func (ib *Inbox) warnWithoutInbox() {
	if ib.cfg.options.ConsumeChannelInboxRequirement != RequirementWarn {
		return
	}
	for _, c := range ib.cfg.channels {
		if c.mode != modeInbox && !c.withoutInbox {
			ib.log.Warn("inbox: channel consumes without an inbox", zap.String(telemetry.FieldChannel, c.name),
				zap.Stringer(telemetry.FieldMode, c.mode))
		}
	}
}

// pausedSynchronous returns the keys of the paused handlers that a synchronous channel waits for, in order of
// declaration.
func (ib *Inbox) pausedSynchronous(channel string) []string {
	var keys []string
	for _, c := range ib.cfg.channels {
		if c.name != channel || c.mode == modeInbox {
			continue
		}
		for _, s := range c.subscriptions {
			if h, known := ib.registry.Lookup(s.spec.key); known && ib.processor.Paused(h) {
				keys = append(keys, h.Key())
			}
		}
	}
	return keys
}
