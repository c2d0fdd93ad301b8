package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// validateKafka returns what is wrong with the channels' transports.
func (cfg *config) validateKafka() error {
	var all []error
	for _, c := range cfg.channels {
		policy := c.options.Acceptor.BadRecords
		for _, k := range c.kafka {
			err := k.Validate()
			switch {
			case cfg.channelOpen(c):
			case policy == acceptor.BadRecordDeadLetter && k.DeadLetterTopic == "":
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic is empty: must be a topic with BadRecords %s",
						policy))
			case policy != acceptor.BadRecordDeadLetter && k.DeadLetterTopic != "" && !k.PublishPoisoned:
				err = errors.Join(err,
					fmt.Errorf("option DeadLetterTopic = %q: must be empty while BadRecords is %s and PublishPoisoned is off",
						k.DeadLetterTopic, policy))
			}
			all = append(all, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return errors.Join(all...)
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

// checkGroups refuses two channels of one process in one consumer group: Kafka would give each partition to only one of
// them, and the other's handlers would never see its records. Groups are in one cluster if they share a broker. The
// error joins all pairs in a fixed order.
func checkGroups(all []membership) error {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b membership) int { return strings.Compare(a.inbox, b.inbox) })
	var problems []error
	for i, a := range all {
		for _, b := range all[i+1:] {
			shared := slices.ContainsFunc(a.kafka.Brokers, func(broker string) bool {
				return slices.Contains(b.kafka.Brokers, broker)
			})
			sameChannel := a.inbox == b.inbox && a.channel == b.channel // Kafka declared twice, which validateChannels reports
			if shared && !sameChannel && a.kafka.GroupID == b.kafka.GroupID {
				problems = append(problems,
					fmt.Errorf("channel %q of inbox %q and channel %q of inbox %q have the same GroupID %q: each must have its own, or either would get the records of some partitions only",
						a.channel, a.inbox, b.channel, b.inbox, a.kafka.GroupID))
			}
		}
	}
	return errors.Join(problems...)
}

// newConsumers makes the consumers of all channels that have a transport. Each start makes its own, because a consumer
// cannot be started again.
func (ib *Inbox) newConsumers() ([]*kafkaconsumer.Consumer, error) {
	var (
		consumers []*kafkaconsumer.Consumer
		problems  []error
	)
	for _, c := range ib.cfg.channels {
		for _, cfg := range c.kafka {
			consumer, err := ib.newConsumer(c, ib.consumerConfig(c.name, cfg))
			if err != nil {
				problems = append(problems, err)
				continue
			}
			consumer.PublishCopies(kafkaconsumer.Copies{Store: ib.store, HandlerKeys: c.handlerKeys(),
				StatementTimeout: ib.cfg.options.Processor.StatementTimeout, Lease: ib.cfg.options.Processor.WorkerTimeout})
			consumers = append(consumers, consumer)
		}
	}
	return consumers, errors.Join(problems...)
}

func (ib *Inbox) newConsumer(c *channel, cfg kafkaconsumer.Config) (*kafkaconsumer.Consumer, error) {
	if c.mode == modeInbox {
		return kafkaconsumer.New(c.name, cfg, ib.acceptor, ib.log, ib.cfg.clock)
	}
	cfg.Decoder = c.decoding(cfg.Decoder)
	return kafkaconsumer.NewDirect(c.name, cfg, ib.runners[c.name],
		c.options.Acceptor.Unrouted == acceptor.UnroutedReject, ib.acceptor, ib.log, ib.cfg.clock)
}

// decoding returns how the channel decodes records. Direct deduplicates nothing, so coordinates will do as an
// ID. Inline leaves a missing ID to the receiver: with coordinates it would remember an ID that no resent copy
// has.
func (c *channel) decoding(declared envelope.DecoderConfig) envelope.DecoderConfig {
	if c.mode != modeInbox {
		declared.AllowMissingID = c.mode == modeDirect
	}
	return declared
}

// handlerKeys returns all keys of the channel's handlers, each once.
func (c *channel) handlerKeys() []string {
	var keys []string
	for _, r := range registrations("", []*channel{c}) {
		if !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

// decoders returns the decoders of the channels that have a transport.
func (ib *Inbox) decoders() map[string]*envelope.Decoder {
	decoders := map[string]*envelope.Decoder{}
	for _, c := range ib.cfg.channels {
		for _, cfg := range c.kafka {
			decoders[c.name], _ = envelope.NewDecoder(c.decoding(cfg.Decoder), ib.log) // validateKafka has checked it
		}
	}
	return decoders
}

// consumerConfig returns a channel's Kafka configuration with the inbox's counters and policies added to its hooks.
func (ib *Inbox) consumerConfig(channel string, cfg kafkaconsumer.Config) kafkaconsumer.Config {
	onDeadLetter := cfg.OnDeadLetter
	cfg.OnDeadLetter = func(record envelope.Record, reason error) {
		ib.counters.OfChannel(telemetry.DeadLettered, channel, 1)
		if onDeadLetter != nil {
			onDeadLetter(record, reason)
		}
	}
	if ib.cfg.options.ShutdownOnHalt {
		onHalt := cfg.OnHalt
		cfg.OnHalt = func(topic string, partition int, reason error) {
			defer ib.endApplication(channel, topic, partition, reason) // also if the user's function panics
			if onHalt != nil {
				onHalt(topic, partition, reason)
			}
		}
	}
	return cfg
}

// exitHalted is the application's exit code after ShutdownOnHalt.
const exitHalted = 1

var errNoShutdown = errors.New("option ShutdownOnHalt requires Fx: use OnHalt of kafkaconsumer.Config to end the application")

// endApplication shuts the Fx application down once, however many partitions halt.
func (ib *Inbox) endApplication(channel, topic string, partition int, reason error) {
	ib.shutdownOnce.Do(func() {
		ib.log.Error("inbox: a partition is halted, shutting the application down",
			zap.String(telemetry.FieldChannel, channel),
			zap.String(telemetry.FieldTopic, topic), zap.Int(telemetry.FieldPartition, partition), zap.Error(reason))
		if err := ib.cfg.shutdown(exitHalted); err != nil {
			ib.log.Error("inbox: shutting the application down failed", zap.Error(err))
		}
	})
}

// storedConsumers returns the consumers as workers store them for operators. Of all partitions it has the first
// maxStoredPartitions: the halted ones, then those with a problem, then those with the largest lag. failing are the
// handlers for which partitions of Inline and Direct channels wait.
func (ib *Inbox) storedConsumers(
	all []kafkaconsumer.Health, failing map[string][]health.FailingHandler,
) []ops.Consumer {
	consumers := make([]ops.Consumer, len(all))
	unrouted := ib.counters.By(telemetry.Unrouted)
	type place struct {
		topic     string
		partition int
	}
	type listed struct {
		consumer int
		ops.ConsumedPartition
	}
	var partitions []listed
	for i, h := range all {
		of := redact.Value{Channel: h.Channel}
		consumers[i] = ops.Consumer{Channel: h.Channel, GroupID: h.GroupID, State: string(h.State), Since: h.StateSince,
			Unrouted: unrouted[h.Channel], Unlisted: len(h.Partitions)}
		consumers[i].Lag, _ = h.Lag()
		waiting := map[place]health.FailingHandler{}
		for _, f := range slices.Backward(failing[h.Channel]) { // the handler that has failed for longest counts
			waiting[place{f.Topic, f.Partition}] = f
		}
		for _, p := range h.Partitions {
			stored := ops.ConsumedPartition{Topic: p.Topic, Partition: int32(p.Partition), State: string(p.State),
				Position: p.Accepted, Committed: p.Committed, Lag: p.Lag, Since: p.HaltedAt, Halted: p.Halted != nil,
				Skippable: slices.Contains(p.Decisions, columns.DecisionSkip),
				AfterGap:  slices.Contains(p.Decisions, columns.DecisionContinue)}
			problem := p.Halted
			if problem == nil && p.Err != nil {
				problem, stored.Since = p.Err, p.ErrSince
			}
			if f, fails := waiting[place{p.Topic, p.Partition}]; problem == nil && fails {
				problem = fmt.Errorf("%s %s", f.HandlerKey, f.Text(ib.cfg.clock.Now()))
				stored.Since = f.Since
			}
			if problem != nil {
				stored.Problem = shortened(ib.cfg.redactor.Error(of, problem.Error()))
			}
			partitions = append(partitions, listed{i, stored})
		}
		h.Partitions = nil // so that Problem reports the consumer alone
		if err := h.Err(); err != nil {
			consumers[i].Problem = shortened(ib.cfg.redactor.Error(of, err.Error()))
		}
	}
	severity := func(p listed) int {
		switch {
		case p.Halted:
			return 0
		case p.Problem != "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(partitions, func(a, b listed) int {
		return cmp.Or(cmp.Compare(severity(a), severity(b)), cmp.Compare(b.Lag, a.Lag))
	})
	for _, p := range partitions[:min(len(partitions), maxStoredPartitions)] {
		c := &consumers[p.consumer]
		c.Partitions = append(c.Partitions, p.ConsumedPartition)
		c.Unlisted--
	}
	return consumers
}
