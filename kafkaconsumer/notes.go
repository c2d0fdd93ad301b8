package kafkaconsumer

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// warn logs settings that are allowed and dangerous.
func (c *Consumer) warn() {
	switch {
	case c.cfg.TLS != nil && c.cfg.TLS.InsecureSkipVerify && c.cfg.TLS.VerifyPeerCertificate == nil &&
		c.cfg.TLS.VerifyConnection == nil:
		c.log.Warn("inbox: TLS.InsecureSkipVerify is set, any server can pose as the broker")
	case c.cfg.TLS == nil && c.cfg.SASL.Mechanism != "" && !c.cfg.SASL.AllowWithoutTLS:
		c.log.Warn("inbox: SASL is used without TLS: who is on the way to the broker can read the messages, act as this client, " +
			"and guess its password without the broker; set TLS, or SASL.AllowWithoutTLS if that is meant")
	}
}

// setState stores what the consumer does next. After Stop, only StateStopped is stored.
func (c *Consumer) setState(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped || s == StateStopped {
		c.enter(s)
	}
}

// enter changes the state. The lock is held.
func (c *Consumer) enter(s State) {
	if c.state != s {
		c.state, c.stateSince = s, c.clock.Now()
	}
}

func (c *Consumer) joined(s *session) {
	c.mu.Lock()
	c.session, c.member, c.generation, c.downSince = s, s.gen.MemberID, s.gen.ID, time.Time{}
	c.idle = nil
	c.joins++
	if !c.stopped {
		c.enter(StateRunning)
	}
	c.mu.Unlock()
	c.grouping.End(nil)
	c.accepting.Clear() // of earlier generations
	c.publishing.Clear()
	c.log.Info("inbox: kafka consumer joined its group", zap.String(telemetry.FieldMember, s.gen.MemberID),
		zap.Int32(telemetry.FieldGeneration, s.gen.ID),
		zap.Int(telemetry.FieldPartitions, len(s.partitions)))
	if err := s.refused.err(); err != nil {
		c.log.Error("inbox: assigned partitions are refused", zap.String(telemetry.FieldGroup, c.cfg.GroupID), zap.Error(err))
	}
}

// left records the end of a generation and, in the same step, that the consumer is joining.
// Otherwise it would for a moment look like a member without partitions, which counts as caught up.
func (c *Consumer) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepProgress()
	c.session, c.idle, c.downSince = nil, nil, c.clock.Now()
	if !c.stopped {
		c.enter(StateJoining)
	}
}

// setMissing stores and logs which topics cannot be consumed: missing ones do not exist, and denied
// ones are invisible to this client.
func (c *Consumer) setMissing(missing, denied []string) {
	c.mu.Lock()
	missingBefore, deniedBefore := c.missing, c.denied
	c.missing, c.denied = missing, denied
	c.mu.Unlock()
	switch {
	case slices.Equal(missingBefore, missing):
	case len(missing) > 0:
		c.log.Warn("inbox: topics do not exist, waiting for them", zap.Strings(telemetry.FieldTopics, missing))
	case len(denied) == 0:
		c.log.Info("inbox: all topics exist now", zap.Strings(telemetry.FieldTopics, missingBefore))
	}
	switch {
	case slices.Equal(deniedBefore, denied):
	case len(denied) > 0:
		c.log.Warn("inbox: topics cannot be seen: the right READ is missing, and they may not exist; waiting for it",
			zap.Strings(telemetry.FieldTopics, denied), zap.String(telemetry.FieldClient, c.cfg.who()))
	default:
		c.log.Info("inbox: all topics can be seen now", zap.Strings(telemetry.FieldTopics, deniedBefore))
	}
}

// halt stops a partition, logs the reason and calls OnHalt.
func (c *Consumer) halt(p *partition, h halt) {
	if !p.halt(h) {
		return
	}
	reason := h.reason
	c.log.Error("inbox: partition is halted, others go on", zap.String(telemetry.FieldTopic, p.topic),
		zap.Int(telemetry.FieldPartition, p.id),
		zap.Int64(telemetry.FieldOffset, p.acceptedTo()), zap.Error(reason))
	if c.cfg.OnHalt == nil {
		return
	}
	if err := routine.Protect("OnHalt", func() error { c.cfg.OnHalt(p.topic, p.id, reason); return nil }); err != nil {
		c.log.Error("inbox: OnHalt failed", zap.Error(err))
	}
}

// committed records a commit's result.
func (c *Consumer) committed(err error) {
	if err != nil {
		c.committing.Begin(nil, c.cfg.explain(err))
		return
	}
	c.committing.End(nil)
}

func (c *Consumer) decode(r envelope.Record) envelope.Received { return c.decoder.Decode(c.channel, r) }
