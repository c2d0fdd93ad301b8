package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// newConsumers makes the consumers of all channels that have a transport. Each start makes its own, because a consumer
// cannot be started again.
func (e *Engine) newConsumers() ([]*kafkaconsumer.Consumer, error) {
	var consumers []*kafkaconsumer.Consumer
	var problems []error
	for _, c := range e.cfg.Channels {
		if c.Kafka == nil {
			continue
		}
		consumer, err := e.newConsumer(c)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		consumer.PublishCopies(kafkaconsumer.Copies{Store: e.store, Sealer: e.sealer, HandlerKeys: e.allKeys(c),
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

// decoding returns how the channel decodes records. Direct deduplicates nothing, so coordinates will do as an ID.
// Inline leaves a missing ID to the receiver: with coordinates it would remember an ID that no resent copy has.
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

// progressHeartbeats is how many HeartbeatIntervals pass between two records of the consumers' progress. Deletions are
// late by that much, which retentions do not notice, and each partition costs a write.
const progressHeartbeats = 6

// recordProgressUntilStopped records the consumers' progress at intervals.
func (e *Engine) recordProgressUntilStopped(ctx context.Context) {
	failing := condition.New(e.log, e.cfg.Clock, zap.WarnLevel, "record of what partitions have caught up to",
		"cleanup deletes later")
	interval := progressHeartbeats * e.cfg.Processor.HeartbeatInterval
	repeat(ctx, interval, failing, "recording progress", func() error { return e.writeProgress(ctx) })
}

// lastProgressTimeout bounds the record at a stop.
const lastProgressTimeout = 2 * time.Second

// recordLastProgress records the last progress of the stopped consumers. The next process finds less to wait for.
func (e *Engine) recordLastProgress(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastProgressTimeout)
	defer cancel()
	if err := e.recordProgress(ctx); err != nil {
		e.log.Warn("inbox: what partitions have caught up to is not recorded, cleanup deletes later", zap.Error(err))
	}
}

// recordProgress stores how far this process's consumers have read each partition, so that every cleanup of the inbox
// knows it, in any process (contract 6.5). It does nothing in a process without consumers.
func (e *Engine) recordProgress(ctx context.Context) error {
	if len(e.currentConsumers()) == 0 {
		return nil
	}
	return e.writeProgress(ctx)
}

// currentConsumers returns the consumers of the current run. There are none before Start and after Stop.
func (e *Engine) currentConsumers() []*kafkaconsumer.Consumer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.consumers
}

// writeProgress is recordProgress, also without consumers: the store then counts for how long others are missing.
func (e *Engine) writeProgress(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Processor.StatementTimeout)
	defer cancel()
	now, err := e.store.Clock(ctx, e.cfg.Clock.Now())
	if err != nil {
		return err
	}
	read := time.Now() // after the database's clock was read, so ages are never too short
	var rows []models.Partition
	var unlisted []store.Unlisted
	for _, c := range e.currentConsumers() {
		p := c.Progress()
		inline := c.Direct()
		if inline && !e.keepsMarkers(p.Channel) {
			continue // its redeliveries need nothing that cleanup deletes
		}
		for _, t := range p.Topics {
			if t.ListedAt.IsZero() {
				unlisted = append(unlisted, declared(p, t.Topic)...)
			}
			row := models.Partition{Channel: p.Channel, GroupID: p.GroupID, Topic: t.Topic, Partition: -1, Inline: inline,
				CaughtUpAt: before(now, read, t.ListedAt)}
			rows = append(rows, row)
			for _, id := range t.Partitions {
				row.Partition, row.CaughtUpAt = int32(id), before(now, read, t.CaughtUp[id])
				rows = append(rows, row)
			}
		}
	}
	return e.store.RecordProgress(ctx, rows, unlisted, now)
}

// declared returns what is declared of a topic before its partitions are known: all, or those that the group names. A
// partition that another group has taken over must be forgotten, however often this process starts.
func declared(p kafkaconsumer.Progress, topic string) []store.Unlisted {
	all := store.Unlisted{Channel: p.Channel, GroupID: p.GroupID, Topic: topic}
	if p.Named == nil {
		return []store.Unlisted{all}
	}
	named := make([]store.Unlisted, len(p.Named))
	for i, id := range p.Named {
		partition := int32(id)
		named[i] = all
		named[i].Partition = &partition
	}
	return named
}

// before converts a moment of this process to the database's clock, which showed now at read. It returns nil for the
// zero time. The monotonic clock shows how long ago the moment is, even if this machine's clock is wrong. It stands
// still while a machine is suspended: then the wall clock shows more.
func before(now, read, moment time.Time) *time.Time {
	if moment.IsZero() {
		return nil
	}
	at := now.Add(-max(read.Sub(moment), read.Round(0).Sub(moment.Round(0)), 0))
	return &at
}

func (e *Engine) keepsMarkers(channel string) bool {
	return slices.ContainsFunc(e.cfg.Channels, func(c Channel) bool {
		return c.Name == channel && c.Mode == Inline && c.keepsMarkers(e.cfg.DB)
	})
}
