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

// delivery says how a channel's messages reach its handlers (contract 1).
type delivery int

const (
	viaInbox delivery = iota
	inlined
	direct
)

func (d delivery) String() string {
	switch d {
	case inlined:
		return "Inline"
	case direct:
		return "Direct"
	default:
		return "Inbox"
	}
}

// deliver notes how the channel is delivered.
func (c *channel) deliver(d delivery) {
	c.modes = append(c.modes, d)
	c.delivery = d
}

// Direct delivers the channel's Kafka records to its handlers without an
// inbox: they run while the transport waits, record after record in each
// partition, PartitionConcurrency partitions at once, and the offset moves past
// a record when all handlers of its messages are done. Nothing is stored:
// nothing is deduplicated, parked, replayed or shown, and a crash, a rebalance
// or a lost commit runs a record's handlers again, from attempt 1. A message
// without ID gets its coordinates as ID.
//
// A handler that fails is tried again in place, without those that have
// succeeded, after the inbox's or its own backoff, up to MaxRetries, the inbox's or
// its own; meanwhile its partition waits. Then, or after handler.Poison, the record
// is bad, and BadRecords applies. handler.RetryAfter replaces the backoff; handler.Snooze
// charges nothing and holds the partition up. What the database cuts short
// before or after the handler's own part is not charged. HandlerTimeout,
// middleware, codecs, OnAttempt and OnPoisoned work as in the inbox. Tx gets a
// transaction of its own, committed before the offset: its writes are there as
// a whole or not at all, at least once.
//
// HaltAtBadRecords above 1 has no effect: records come one by one, and one is
// no sign of a wrong schema; use BadRecords to halt. A record that is kept as
// rejected cannot be accepted again by AcceptRejected while the channel is
// Direct, which stores nothing: publish it again (contract 7.1, 7.4).
//
// A rebalance or a stop begins no other handler. It gives the running ones
// DrainTimeout and at most three quarters of the time that Stop has for
// consumers, then cancels them and gives the partition up. A record whose
// handlers were not all done is delivered again, to all of them. A handler that
// ignores its cancelled context is left behind, shown by Health, and the next
// call for its partition in this process waits for it, up to StuckHandlerGrace.
//
// Direct needs Kafka. Batch and TxBatch, handler.Ordered, handler.TxGroup, handler.CircuitBreaker,
// handler.Concurrency and handler.Retention cannot hold and are errors at
// start. Statuses that the inbox stored before the channel became Direct are still
// processed. Do not use it for messages that
// must not be lost or handled twice, nor for handlers that fail for long: a
// failing message holds up all that come after it in its partition (contract
// 1, 7.6).
func Direct() ChannelOption { return func(c *channel) { c.deliver(direct) } }

// AllowConsumeWithoutInbox exempts the channel from
// ConsumeChannelInboxRequirement, and from nothing else. Do not use it to get
// past the check: it says that somebody has decided so (contract 7.7).
func AllowConsumeWithoutInbox() ChannelOption { return func(c *channel) { c.withoutInbox = true } }

// validateDelivery reports what cannot hold for how the channels are delivered.
func (cfg *config) validateDelivery(subscriptions []registry.Subscription) error {
	var problems []error
	inPlace := map[string]delivery{}
	for _, c := range cfg.channels {
		if c.delivery == viaInbox {
			continue
		}
		inPlace[c.name] = c.delivery
		if len(c.modes) > 1 {
			problems = append(problems,
				fmt.Errorf("channel %q has several delivery modes %v: declare one of inbox.Inline and inbox.Direct, once", c.name,
					c.modes))
		}
		if len(c.kafka) == 0 {
			problems = append(problems,
				fmt.Errorf("channel %q is in %s mode and has no transport: declare inbox.Kafka, or leave inbox.%[2]s out", c.name,
					c.delivery))
		}
		if cfg.options.ConsumeChannelInboxRequirement == RequirementFail && !c.withoutInbox {
			problems = append(problems,
				fmt.Errorf("channel %q consumes in %s mode, and option ConsumeChannelInboxRequirement is %s: use the inbox, or declare inbox.AllowConsumeWithoutInbox",
					c.name, c.delivery, RequirementFail))
		}
		if c.inline != nil {
			problems = append(problems, c.inline.problems(c, cfg.options.ConsumeChannelInboxRequirement)...)
		}
	}
	for _, s := range subscriptions {
		mode := inPlace[s.Channel] // viaInbox if it is not there
		for _, option := range unsupported(s.Handler, mode) {
			problems = append(problems, fmt.Errorf("channel %q, type %q, handler %q: %s cannot hold in %s mode", s.Channel,
				s.Type, s.Handler.Key(), option, mode))
		}
	}
	return errors.Join(problems...)
}

// unsupported names the options of a handler that need what a mode has not: stored
// statuses, or markers.
func unsupported(h *handler.Handler, mode delivery) []string {
	_, breaks := h.CircuitBreaker()
	inPlace := mode != viaInbox
	var options []string
	for _, o := range []struct {
		name        string
		unsupported bool
	}{
		{"a batch handler", inPlace && h.TakesBatches()},
		{"Ordered", inPlace && h.Ordered()},
		{"TxGroup", inPlace && h.TxGroup() > 1},
		{"Concurrency", inPlace && h.Concurrency() > 0},
		{"Retention", mode == direct && h.Retention() > 0},
		{"CircuitBreaker", inPlace && breaks},
		{"IdempotencyKey", mode != inlined && h.IdempotencyKey() != nil},
	} {
		if o.unsupported {
			options = append(options, o.name)
		}
	}
	return options
}

// newRunners makes what runs handlers in place, by channel. It outlives starts
// and stops: calls that were left behind are still known.
func (ib *Inbox) newRunners() map[string]*synchronous.Runner {
	runners := map[string]*synchronous.Runner{}
	o := ib.cfg.options
	for _, c := range ib.cfg.channels {
		if c.delivery == viaInbox {
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
		if c.delivery == inlined {
			cfg.Memories = ib.memories[c.name]
		}
		runners[c.name] = synchronous.New(cfg)
	}
	return runners
}

// deliveredInPlace are the channels that take no messages but their transport's.
func deliveredInPlace(channels []*channel) []string {
	var names []string
	for _, c := range channels {
		if c.delivery != viaInbox {
			names = append(names, c.name)
		}
	}
	return names
}

// warnWithoutInbox says which channels lack what is wished for (contract 7.7).
func (ib *Inbox) warnWithoutInbox() {
	if ib.cfg.options.ConsumeChannelInboxRequirement != RequirementWarn {
		return
	}
	for _, c := range ib.cfg.channels {
		if c.delivery != viaInbox && !c.withoutInbox {
			ib.log.Warn("inbox: channel consumes without an inbox", zap.String(telemetry.FieldChannel, c.name),
				zap.Stringer(telemetry.FieldMode, c.delivery))
		}
	}
}

// pausedSynchronous returns the keys of the paused handlers that an Inline or Direct
// channel waits for, in order of declaration.
func (ib *Inbox) pausedSynchronous(channel string) []string {
	var keys []string
	for _, c := range ib.cfg.channels {
		if c.name != channel || c.delivery == viaInbox {
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
