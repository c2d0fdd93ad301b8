// Package kafkaconsumer reads Kafka topics for a channel. It fetches records, hands them to an Acceptor and commits
// only accepted records (contract 7).
//
// Membership goes through kafka-go's ConsumerGroup, which cannot commit an offset with metadata. We do not use its
// Reader, which can lose and repeat records and shows records that must stay hidden. Package internal/kafkawire
// commits, and fetches and decodes records: anything that a producer writes can at worst halt its partition.
package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Consumer consumes the topics of one channel. Its methods are safe for concurrent use.
type Consumer struct {
	*shared
	lifetime
	// deliverer runs handlers synchronously. It is nil if all records are accepted instead. For
	// unroutedIsBad, see NewDirect.
	deliverer     Deliverer
	unroutedIsBad bool
	copier        *copier // nil without PublishPoisoned
	bootstrap     int     // index in cfg.Brokers to ask first; used by run's goroutine only

	mu       sync.Mutex
	seen     Health // the group and its topics, as Health shows them
	started  bool
	stopped  bool
	joins    int
	session  *session
	progress progress
	// unassigned counts named partitions that no member has, as a member with partitions has seen in two checks in a row.
	unassigned int

	answered   atomic.Bool // whether any broker has answered
	bare       atomic.Bool // whether offsets are committed without metadata, which the brokers refuse
	groupStart groupStart
}

// shared is what the parts of a consumer work with.
type shared struct {
	channel     string
	cfg         Config
	acceptor    Acceptor
	decoder     *envelope.Decoder
	network     *network
	log         *zap.Logger
	clock       clock.Clock
	deadLetters *deadLetterPublisher // nil without a dead-letter topic
	conditions
}

// conditions are the failures that may last for a while.
type conditions struct {
	grouping   *condition.Condition // reaching brokers and joining
	fetching   *condition.Condition
	accepting  *condition.Condition
	committing *condition.Condition
	stalling   *condition.Condition
	attending  *condition.Condition // polling for operators' requests
	publishing *condition.Condition // to the dead-letter topic
}

// lifetime is the time of a consumer from New to the end of its Stop.
type lifetime struct {
	ctx      context.Context // ends when Stop is called
	stop     context.CancelFunc
	hardCtx  context.Context // ends when the time of Stop is up
	hardStop context.CancelFunc
	done     chan struct{} // closed when run has returned
}

func newLifetime() lifetime {
	l := lifetime{done: make(chan struct{})}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.hardCtx, l.hardStop = context.WithCancel(context.Background())
	return l
}

// New returns a consumer that is not started and has made no connection. Fields of cfg that are
// zero get their defaults. An invalid field is an error that names the channel, the field, its
// value and what is allowed. A nil logger logs nothing, and a nil clock means the system's.
func New(channel string, cfg Config, acceptor Acceptor, logger *zap.Logger, clk clock.Clock) (*Consumer, error) {
	if channel == "" {
		return nil, errors.New("kafka consumer: the channel's name is empty")
	}
	if acceptor == nil {
		return nil, fmt.Errorf("channel %q: kafka consumer has no acceptor", channel)
	}
	if err := cfg.Validate(); err != nil {
		return nil, problems.Prefix(fmt.Sprintf("channel %q: kafka consumer: ", channel), err)
	}
	if logger == nil {
		logger = zap.NewNop()
	}
	if clk == nil {
		clk = clock.System{}
	}
	cfg = cfg.withDefaults()
	log := logger.With(zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldGroup, cfg.GroupID))
	decoder, err := envelope.NewDecoder(cfg.Decoder, log)
	if err != nil {
		return nil, fmt.Errorf("channel %q: kafka consumer: %w", channel, err)
	}
	network, err := newNetwork(cfg, log, clk)
	if err != nil {
		return nil, fmt.Errorf("channel %q: kafka consumer: %w", channel, err)
	}
	cfg.SASL = cfg.SASL.withoutSecrets()
	failing := func(name, meaning string, fields ...zap.Field) *condition.Condition {
		return condition.New(log.With(fields...), clk, zap.WarnLevel, name, meaning)
	}
	s := &shared{channel: channel, cfg: cfg, acceptor: acceptor, decoder: decoder, network: network, log: log, clock: clk,
		conditions: conditions{
			grouping:   failing("group membership", "nothing is consumed"),
			fetching:   failing("kafka fetch", "it is tried again"),
			accepting:  failing("accept", "the same records are tried again"),
			committing: failing("offset commit", "what was accepted since may be redelivered"),
			stalling:   failing("partition progress", "there are records to read"),
			attending:  failing("partition requests", "halted partitions stay halted"),
			publishing: failing("dead-letter publish", "the same records are tried again",
				zap.String(telemetry.FieldDeadLetterTopic, cfg.DeadLetterTopic)),
		}}
	if cfg.DeadLetterTopic != "" {
		s.deadLetters = &deadLetterPublisher{s}
	}
	return &Consumer{shared: s, lifetime: newLifetime(),
		seen:       Health{Channel: channel, GroupID: cfg.GroupID, State: StateNew},
		progress:   progress{listings: map[string]listing{}, caughtUp: map[partitionKey]time.Time{}},
		groupStart: groupStart{absent: map[string]bool{}}}, nil
}

// Start begins to consume in the background and returns at once. A broker that is down or a topic that is missing is no
// error: it is logged, shown by Health and waited for. Starting a running consumer does nothing. After Stop it fails
// with ErrStopped. ctx only decides whether to start at all.
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
	c.started, c.seen.DownSince = true, c.clock.Now()
	c.cfg.client().Warn(c.log)
	go c.run()
	return nil
}

// The time limits of Stop.
const (
	leaveTimeout = 5 * time.Second // to leave the group, once all is accepted
	cutTimeout   = 2 * time.Second // to end after connections were cut
)

// Stop ends fetching, lets running accepts finish within DrainTimeout, commits them, leaves the group and waits until
// all of this has ended. After three quarters of ctx's time (or after DrainTimeout and 5 s, if ctx has no deadline) it
// cancels accepts and closes connections. Records that are accepted and not committed by then are redelivered. Stop
// fails only if the acceptor ignores its context until ctx ends. Calling Stop before Start, or twice, is allowed.
func (c *Consumer) Stop(ctx context.Context) error {
	c.mu.Lock()
	first := !c.stopped
	c.stopped = true
	if !c.started && first {
		c.enter(StateStopped)
		close(c.done)
		c.hardStop()
	} else if c.seen.State != StateStopped {
		c.enter(StateStopping)
	}
	c.mu.Unlock()
	c.stop()

	soft := c.cfg.DrainTimeout + leaveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		soft = min(soft, time.Until(deadline)*3/4)
	}
	select {
	case <-c.done:
		c.hardStop()
		return nil
	case <-time.After(soft):
	case <-ctx.Done():
	}
	c.hardStop()
	c.network.Cut()
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

// Health returns a snapshot of the consumer and its partitions.
func (c *Consumer) Health() Health {
	c.mu.Lock()
	h, session, namedErr := c.seen, c.session, c.namedErr()
	c.mu.Unlock()
	_, h.GroupErr = c.grouping.Current()
	_, h.ClusterErr = c.network.Refreshing.Current()
	if h.GroupErr == nil && h.State == StateJoining && c.clock.Now().Sub(h.StateSince) >= c.cfg.ProgressTimeout {
		h.GroupErr = fmt.Errorf("%w since %s", errJoining, h.StateSince.Format(time.RFC3339))
	}
	h.AcceptFailingSince, h.AcceptErr = c.accepting.Current()
	h.DeadLetterFailingSince, h.DeadLetterErr = c.publishing.Current()
	if c.copier != nil {
		h.CopyFailingSince, h.CopyErr = c.copier.failing.Current()
	}
	h.CommitFailingSince, h.CommitErr = c.committing.Current()
	if session != nil {
		h.BufferedBytes = session.buffer.Bytes()
		h.Partitions = c.partitionHealth(session)
		h.AssignmentErr = errors.Join(session.assignmentErr(), namedErr)
	}
	return h
}

// State returns what the consumer is doing.
func (c *Consumer) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.State
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
	if c.seen.State != s {
		c.seen.State, c.seen.StateSince = s, c.clock.Now()
	}
}

func (c *Consumer) joined(s *session) {
	c.mu.Lock()
	c.session, c.seen.MemberID, c.seen.Generation = s, s.gen.MemberID, s.gen.ID
	c.seen.DownSince, c.seen.Idle, c.unassigned = time.Time{}, nil, 0
	c.seen.Rebalances = c.joins
	c.joins++
	if !c.stopped {
		c.enter(StateRunning)
	}
	c.mu.Unlock()
	c.grouping.End(nil)
	if len(s.partitions) == 0 {
		c.committing.Forget(nil) // nothing will be committed that could end it
	}
	c.committing.Clear() // of earlier generations
	c.accepting.Clear()
	c.publishing.Clear()
	c.log.Info("inbox: kafka consumer joined its group", zap.String(telemetry.FieldMember, s.gen.MemberID),
		zap.Int32(telemetry.FieldGeneration, s.gen.ID), zap.Int(telemetry.FieldPartitions, len(s.partitions)))
	if err := s.assignmentErr(); err != nil {
		c.log.Error("inbox: assigned partitions are refused", zap.String(telemetry.FieldGroup, c.cfg.GroupID), zap.Error(err))
	}
}

// left records the end of a generation and, in the same step, that the consumer is joining.
// Otherwise it would for a moment look like a member without partitions, which counts as caught up.
func (c *Consumer) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepProgress()
	c.session, c.seen.Idle, c.seen.DownSince = nil, nil, c.clock.Now()
	if !c.stopped {
		c.enter(StateJoining)
	}
}

// setMissing stores and logs which topics cannot be consumed: missing ones do not exist, and denied
// ones are invisible to this client.
func (c *Consumer) setMissing(missing, denied []string) {
	c.mu.Lock()
	missingBefore, deniedBefore := c.seen.MissingTopics, c.seen.DeniedTopics
	c.seen.MissingTopics, c.seen.DeniedTopics = missing, denied
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
			zap.Strings(telemetry.FieldTopics, denied), zap.String(telemetry.FieldClient, c.cfg.client().Who()))
	default:
		c.log.Info("inbox: all topics can be seen now", zap.Strings(telemetry.FieldTopics, deniedBefore))
	}
}

// halt stops a partition, logs the reason and calls OnHalt.
func (s *shared) halt(p *partition, h halt) {
	if !p.halt(h) {
		return
	}
	reason := h.reason
	s.log.Error("inbox: partition is halted, others go on", zap.String(telemetry.FieldTopic, p.topic),
		zap.Int(telemetry.FieldPartition, p.id), zap.Int64(telemetry.FieldOffset, p.acceptedTo()), zap.Error(reason))
	if s.cfg.OnHalt != nil {
		s.callback("OnHalt", func() { s.cfg.OnHalt(p.topic, p.id, reason) })
	}
}

// callback calls a function of the application, and logs its panic.
func (s *shared) callback(option string, call func()) {
	if err := routine.Protect(option, func() error { call(); return nil }); err != nil {
		s.log.Error("inbox: "+option+" failed", zap.Error(err))
	}
}

func (s *shared) decode(r envelope.Record) envelope.Received { return s.decoder.Decode(s.channel, r) }

// Progress is how far the topics of a channel are read in its group (contract 6.5).
type Progress struct {
	Channel, GroupID string
	Named            []int           // Config.Partitions
	Topics           []TopicProgress // in the order of Config.Topics
}

// TopicProgress is how far a topic is read, as its consumer knows it. Its times have readings of the monotonic clock.
type TopicProgress struct {
	Topic string
	// Partitions are those partitions that the topic had at ListedAt and that the group reads, in ascending order.
	// ListedAt is zero while no broker has answered that.
	Partitions []int
	ListedAt   time.Time
	// CaughtUp has for partitions that this consumer has or had a moment such that everything that was
	// in the partition then is accepted and its offset committed.
	CaughtUp map[int]time.Time
}

// listing is how many partitions a topic had when they were asked for.
type listing struct {
	at         time.Time
	partitions int
}

type partitionKey struct {
	topic string
	id    int
}

// progress is what Progress needs to know.
type progress struct {
	listings map[string]listing         // by topic
	caughtUp map[partitionKey]time.Time // in earlier sessions
}

// Progress returns the progress of each configured topic. A partition's progress is kept after its assignment ends.
func (c *Consumer) Progress() Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepProgress()
	all := make([]TopicProgress, len(c.cfg.Topics))
	for i, topic := range c.cfg.Topics {
		l := c.progress.listings[topic]
		all[i] = TopicProgress{Topic: topic, Partitions: c.cfg.own(l.partitions), ListedAt: l.at,
			CaughtUp: map[int]time.Time{}}
		for key, at := range c.progress.caughtUp {
			if key.topic == topic {
				all[i].CaughtUp[key.id] = at
			}
		}
	}
	return Progress{Channel: c.channel, GroupID: c.cfg.GroupID, Named: c.cfg.Partitions, Topics: all}
}

// keepProgress copies the progress of the session's partitions, which outlives the session. The lock is held.
func (c *Consumer) keepProgress() {
	if c.session == nil {
		return
	}
	for _, p := range c.session.partitions {
		if at := p.caughtUpAt(); !at.IsZero() {
			c.progress.caughtUp[p.key()] = at
		}
	}
}

// listed stores an answer about the topics, which was asked for at the given time.
func (c *Consumer) listed(existing map[string]int, missing []string, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, partitions := range existing {
		c.progress.listings[topic] = listing{asked, partitions}
	}
	for _, topic := range missing {
		c.progress.listings[topic] = listing{at: asked}
	}
}
