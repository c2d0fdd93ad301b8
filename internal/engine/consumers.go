package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// newConsumers makes the consumers of all channels that have a transport. Each start makes its own, because a consumer
// cannot be started again.
func (e *Engine) newConsumers() ([]*kafkaconsumer.Consumer, error) {
	var (
		consumers []*kafkaconsumer.Consumer
		problems  []error
	)
	for _, c := range e.cfg.Channels {
		if c.Kafka == nil {
			continue
		}
		consumer, err := e.newConsumer(c)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		consumer.PublishCopies(kafkaconsumer.Copies{Store: e.store, HandlerKeys: e.allKeys(c),
			StatementTimeout: e.cfg.Processor.StatementTimeout, Lease: e.cfg.Processor.WorkerTimeout})
		consumers = append(consumers, consumer)
	}
	return consumers, errors.Join(problems...)
}

func (e *Engine) newConsumer(c Channel) (*kafkaconsumer.Consumer, error) {
	cfg := e.consumerConfig(c)
	if c.Mode == Inbox {
		return kafkaconsumer.New(c.Name, cfg, e.acceptor, e.log, e.cfg.Clock)
	}
	cfg.Decoder = c.decoding()
	return kafkaconsumer.NewDirect(c.Name, cfg, e.runners[c.Name],
		c.Acceptor.Unrouted == acceptor.UnroutedReject, e.acceptor, e.log, e.cfg.Clock)
}

// decoding returns how the channel decodes records. Direct deduplicates nothing, so coordinates will do as an
// ID. Inline leaves a missing ID to the receiver: with coordinates it would remember an ID that no resent copy
// has.
func (c Channel) decoding() envelope.DecoderConfig {
	declared := c.Kafka.Decoder
	if c.Mode != Inbox {
		declared.AllowMissingID = c.Mode == Direct
	}
	return declared
}

// allKeys returns all keys of the channel's handlers.
func (e *Engine) allKeys(c Channel) []string {
	var keys []string
	for _, key := range c.HandlerKeys {
		h, _ := e.cfg.Registry.Lookup(key) // known, because it is the channel's
		keys = append(keys, h.Keys()...)
	}
	return keys
}

// decoders returns the decoders of the channels that have a transport.
func (e *Engine) decoders() map[string]*envelope.Decoder {
	decoders := map[string]*envelope.Decoder{}
	for _, c := range e.cfg.Channels {
		if c.Kafka != nil {
			decoders[c.Name], _ = envelope.NewDecoder(c.decoding(), e.log) // the declaration has been checked
		}
	}
	return decoders
}

// consumerConfig returns a channel's Kafka configuration with the inbox's counters and policies added to its hooks.
func (e *Engine) consumerConfig(c Channel) kafkaconsumer.Config {
	cfg := *c.Kafka
	onDeadLetter := cfg.OnDeadLetter
	cfg.OnDeadLetter = func(record envelope.Record, reason error) {
		e.counters.OfChannel(telemetry.DeadLettered, c.Name, 1)
		if onDeadLetter != nil {
			onDeadLetter(record, reason)
		}
	}
	if e.cfg.EndApplication != nil {
		onHalt := cfg.OnHalt
		cfg.OnHalt = func(topic string, partition int, reason error) {
			defer e.endApplication(c.Name, topic, partition, reason) // also if the user's function panics
			if onHalt != nil {
				onHalt(topic, partition, reason)
			}
		}
	}
	return cfg
}

// endApplication shuts the application down once, however many partitions halt.
func (e *Engine) endApplication(channel, topic string, partition int, reason error) {
	e.shutdownOnce.Do(func() {
		e.log.Error("inbox: a partition is halted, shutting the application down",
			zap.String(telemetry.FieldChannel, channel),
			zap.String(telemetry.FieldTopic, topic), zap.Int(telemetry.FieldPartition, partition), zap.Error(reason))
		if err := e.cfg.EndApplication(); err != nil {
			e.log.Error("inbox: shutting the application down failed", zap.Error(err))
		}
	})
}

// storedConsumers returns the consumers as workers store them for operators. Of all partitions it has the first
// maxStoredPartitions: the halted ones, then those with a problem, then those with the largest lag. failing are the
// handlers for which partitions of Inline and Direct channels wait.
func (e *Engine) storedConsumers(
	all []kafkaconsumer.Health, failing map[string][]health.FailingHandler,
) []ops.Consumer {
	consumers := make([]ops.Consumer, len(all))
	unrouted := e.counters.By(telemetry.Unrouted)
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
				problem = fmt.Errorf("%s %s", f.HandlerKey, f.Text(e.cfg.Clock.Now()))
				stored.Since = f.Since
			}
			if problem != nil {
				stored.Problem = shortened(e.cfg.Redactor.Error(of, problem.Error()))
			}
			partitions = append(partitions, listed{i, stored})
		}
		h.Partitions = nil // so that Problem reports the consumer alone
		if err := h.Err(); err != nil {
			consumers[i].Problem = shortened(e.cfg.Redactor.Error(of, err.Error()))
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
