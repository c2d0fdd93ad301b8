// Package kafkaconsumer reads Kafka topics for a channel: it fetches, hands
// over to an Acceptor and commits only what is accepted (contract 7).
//
// Membership and commits go through kafka-go's ConsumerGroup, records through
// fetch requests of its Transport. Its Reader is not used: it loses, repeats
// and shows records it must not.
package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/clock"
)

// Consumer consumes the topics of one channel. Its methods are safe for
// concurrent use.
type Consumer struct {
	channel  string
	cfg      Config
	acceptor Acceptor
	decoder  *envelope.Decoder
	network  *network
	log      *zap.Logger
	clock    clock.Clock

	// ctx ends when Stop is called, hardCtx when its time is up.
	ctx        context.Context
	stop       context.CancelFunc
	hardCtx    context.Context
	hardStop   context.CancelFunc
	done       chan struct{}
	grouping   *trouble // reaching brokers and joining
	fetching   *trouble
	accepting  *trouble
	committing *trouble

	mu         sync.Mutex
	state      State
	started    bool
	stopped    bool
	session    *session
	member     string
	generation int32
	joins      int
	downSince  time.Time
	missing    []string
}

// New makes a consumer that is not started and makes no connection. Fields of
// cfg left zero get their defaults; an invalid one is an error that names the
// channel, the field, its value and what is allowed. A nil logger logs
// nothing, a nil clock is the system's.
func New(channel string, cfg Config, acceptor Acceptor, logger *zap.Logger, clk clock.Clock) (*Consumer, error) {
	if channel == "" {
		return nil, errors.New("kafka consumer: the channel's name is empty")
	}
	if acceptor == nil {
		return nil, fmt.Errorf("channel %q: kafka consumer has no acceptor", channel)
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("channel %q: kafka consumer: %w", channel, err)
	}
	if logger == nil {
		logger = zap.NewNop()
	}
	if clk == nil {
		clk = clock.System{}
	}
	cfg = cfg.withDefaults()
	log := logger.With(zap.String("channel", channel), zap.String("group", cfg.GroupID))
	decoder, err := envelope.NewDecoder(cfg.Decoder, log)
	if err != nil {
		return nil, fmt.Errorf("channel %q: kafka consumer: %w", channel, err)
	}
	network, err := newNetwork(cfg)
	if err != nil {
		return nil, fmt.Errorf("channel %q: kafka consumer: %w", channel, err)
	}
	c := &Consumer{
		channel: channel, cfg: cfg, acceptor: acceptor, decoder: decoder, network: network, log: log, clock: clk,
		done: make(chan struct{}), state: StateNew,
		grouping:   &trouble{log: log, clock: clk, what: "kafka consumer is in no group"},
		fetching:   &trouble{log: log, clock: clk, what: "fetching from kafka fails"},
		accepting:  &trouble{log: log, clock: clk, what: "accepting fails, the same records are retried"},
		committing: &trouble{log: log, clock: clk, what: "committing offsets fails, what was accepted since may be redelivered"},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.hardCtx, c.hardStop = context.WithCancel(context.Background())
	return c, nil
}

// Start begins to consume in the background and returns at once. A broker that
// is down or a topic that is missing is no error: it is logged, shown by
// Health and waited for. Starting a running consumer does nothing; after Stop
// it fails with ErrStopped. ctx only says whether to start at all.
func (c *Consumer) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start kafka consumer of channel %q: %w", c.channel, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("start kafka consumer of channel %q: %w", c.channel, ErrStopped)
	}
	if c.started {
		return nil
	}
	c.started, c.downSince = true, c.clock.Now()
	go c.run()
	return nil
}

// Time that Stop needs at its end.
const (
	leaveTimeout = 5 * time.Second // to leave the group, once all is accepted
	cutTimeout   = 2 * time.Second // to end after connections were cut
)

// Stop ends fetching, lets running accepts finish within DrainTimeout, commits
// them, leaves the group and waits for all of it. When three quarters of ctx's
// time are over (or DrainTimeout and 5 s without a deadline), accepts are
// cancelled and connections cut; what was accepted and not committed is then
// redelivered. It fails only if the acceptor ignores its context until ctx
// ends. Stopping before Start or twice is fine.
func (c *Consumer) Stop(ctx context.Context) error {
	c.mu.Lock()
	first := !c.stopped
	c.stopped = true
	if !c.started && first {
		c.state = StateStopped
		close(c.done)
		c.hardStop()
	} else if c.state != StateStopped {
		c.state = StateStopping
	}
	c.mu.Unlock()
	c.stop()

	soft := c.cfg.DrainTimeout + leaveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		soft = min(soft, time.Until(deadline)*3/4)
	}
	timer := time.NewTimer(soft)
	defer timer.Stop()
	select {
	case <-c.done:
		c.hardStop()
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	c.hardStop()
	c.network.cut()
	if _, ok := ctx.Deadline(); !ok || ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), cutTimeout)
		defer cancel()
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop kafka consumer of channel %q: %w", c.channel, ctx.Err())
	}
}

// Health returns a snapshot.
func (c *Consumer) Health() Health {
	c.mu.Lock()
	h := Health{
		Channel: c.channel, GroupID: c.cfg.GroupID, State: c.state, MemberID: c.member, Generation: c.generation,
		Rebalances: max(c.joins-1, 0), DownSince: c.downSince, MissingTopics: c.missing,
	}
	session := c.session
	c.mu.Unlock()
	_, h.GroupErr = c.grouping.current()
	h.AcceptFailingSince, h.AcceptErr = c.accepting.current()
	_, h.CommitErr = c.committing.current()
	if session != nil {
		h.BufferedBytes = session.buffer.bytes()
		for _, p := range session.partitions {
			h.Partitions = append(h.Partitions, p.health())
		}
	}
	return h
}

// State says what the consumer is doing.
func (c *Consumer) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// setState notes what is done next; stopping is left only for stopped.
func (c *Consumer) setState(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped || s == StateStopped {
		c.state = s
	}
}

func (c *Consumer) joined(s *session) {
	c.mu.Lock()
	c.session, c.member, c.generation, c.downSince = s, s.gen.MemberID, s.gen.ID, time.Time{}
	c.joins++
	if !c.stopped {
		c.state = StateRunning
	}
	c.mu.Unlock()
	c.grouping.end(nil)
	c.log.Info("inbox: kafka consumer joined its group", zap.String("member", s.gen.MemberID), zap.Int32("generation", s.gen.ID),
		zap.Int("partitions", len(s.partitions)))
}

func (c *Consumer) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.downSince = nil, c.clock.Now()
}

func (c *Consumer) setMissing(topics []string) {
	c.mu.Lock()
	before := c.missing
	c.missing = topics
	c.mu.Unlock()
	switch {
	case slices.Equal(before, topics):
	case len(topics) > 0:
		c.log.Warn("inbox: topics do not exist, waiting for them", zap.Strings("topics", topics))
	default:
		c.log.Info("inbox: all topics exist now", zap.Strings("appeared", before))
	}
}

// halt stops a partition.
func (c *Consumer) halt(p *partition, reason error) {
	p.halt(reason)
	h := p.health()
	c.log.Error("inbox: partition is halted, others go on", zap.String("topic", p.topic), zap.Int("partition", p.id),
		zap.Int64("offset", h.Accepted), zap.Error(reason))
	if c.cfg.OnHalt == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("inbox: OnHalt panicked", zap.Any("panic", r))
		}
	}()
	c.cfg.OnHalt(p.topic, p.id, reason)
}

// committed notes a commit's result.
func (c *Consumer) committed(err error) {
	if err != nil {
		c.committing.begin(nil, err)
		return
	}
	c.committing.end(nil)
}

func (c *Consumer) decode(r envelope.Record) envelope.Received { return c.decoder.Decode(c.channel, r) }
