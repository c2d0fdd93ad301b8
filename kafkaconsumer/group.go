package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// run keeps the consumer a member of its group until it is stopped.
func (c *Consumer) run() {
	defer close(c.done)
	defer c.setState(StateStopped)
	defer c.network.cut()
	for c.ctx.Err() == nil {
		c.setState(StateWaiting)
		if topics := c.awaitTopics(); len(topics) > 0 {
			c.consume(topics)
		}
	}
}

// refusalBackoffMost bounds how late a login that was refused is tried again,
// and so how late a repaired password is noticed.
const refusalBackoffMost = 5 * time.Second

// awaitTopics waits until at least one of the topics exists and returns those
// that do; none if the consumer is stopped. Asking never creates a topic.
func (c *Consumer) awaitTopics() []string {
	retry := backoff{first: fetchBackoffFirst, most: metadataTTL}
	refusals := backoff{first: metadataTTL, most: refusalBackoffMost}
	for {
		existing, err := c.existingTopics(c.ctx)
		if c.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if c.answered.Load() {
				err = c.cfg.explain(err)
			} else {
				err = c.cfg.explainSilence(err)
			}
			c.grouping.Begin(nil, err)
		}
		if refusedLogin(err) {
			// The transport would go on and log in with the same password about
			// twice a second: brokers write that down, some lock the user out.
			c.network.transport.CloseIdleConnections()
			if !refusals.wait(c.ctx) {
				return nil
			}
			continue
		}
		if len(existing) > 0 {
			topics := make([]string, 0, len(existing))
			for topic := range existing {
				topics = append(topics, topic)
			}
			slices.Sort(topics)
			return topics
		}
		if !retry.wait(c.ctx) {
			return nil
		}
	}
}

// existingTopics returns the configured topics that exist, with the number of
// their partitions, and tells once of those that do not, and of those that this
// client may not see.
func (c *Consumer) existingTopics(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	response, err := c.network.client.Metadata(ctx, &kafka.MetadataRequest{Topics: c.cfg.Topics})
	if err != nil {
		return nil, fmt.Errorf("ask brokers %q for topics: %w", c.cfg.Brokers, err)
	}
	c.answered.Store(true)
	existing, denied := map[string]int{}, []string(nil)
	for _, topic := range response.Topics {
		switch {
		case topic.Error == nil && len(topic.Partitions) > 0:
			existing[topic.Name] = len(topic.Partitions)
		case errors.Is(topic.Error, kafka.TopicAuthorizationFailed): // also if it does not exist
			denied = append(denied, topic.Name)
		case topic.Error != nil && !errors.Is(topic.Error, kafka.UnknownTopicOrPartition) &&
			!errors.Is(topic.Error, kafka.LeaderNotAvailable):
			return nil, fmt.Errorf("ask brokers for topic %q: %w", topic.Name, topic.Error)
		}
	}
	var missing []string
	for _, topic := range c.cfg.Topics {
		if existing[topic] == 0 && !slices.Contains(denied, topic) {
			missing = append(missing, topic)
		}
	}
	c.setMissing(missing, denied)
	c.groupStart.missed(missing)
	return existing, nil
}

// consume is a member of the group for these topics until the consumer is
// stopped or other topics exist.
func (c *Consumer) consume(topics []string) {
	leader := &leaderView{}
	group, err := kafka.NewConsumerGroup(c.groupConfig(topics, leader))
	if err != nil {
		// Validate lets nothing through that ends here.
		c.grouping.Begin(nil, fmt.Errorf("join group %q: %w", c.cfg.GroupID, err))
		routine.Sleep(c.ctx, c.cfg.JoinBackoff)
		return
	}
	// Closing the group ends the generation, waits for its session, which then
	// can still commit, and leaves.
	closed := make(chan struct{})
	leave := sync.OnceFunc(func() {
		go func() {
			defer close(closed)
			_ = group.Close() // never fails
		}()
	})
	defer func() { leave(); <-closed }()
	defer context.AfterFunc(c.ctx, leave)()

	groupCtx, over := context.WithCancel(c.ctx)
	defer over()
	for groupCtx.Err() == nil {
		c.setState(StateJoining)
		gen, err := group.Next(groupCtx)
		if groupCtx.Err() != nil {
			return
		}
		if err != nil {
			if !errors.Is(err, kafka.RebalanceInProgress) { // which is the ordinary course of joining
				c.grouping.Begin(nil, c.cfg.explain(fmt.Errorf("join group %q: %w", c.cfg.GroupID, err)))
			}
			if errors.Is(err, kafka.TopicAuthorizationFailed) {
				// The group's leader may not see one of the topics. Joining without
				// it keeps the others.
				routine.Sleep(c.ctx, c.cfg.JoinBackoff)
				return
			}
			if c.askAnother(err) {
				leave()
				routine.Sleep(c.ctx, c.cfg.JoinBackoff)
				return
			}
			continue
		}
		ended := make(chan struct{})
		gen.Start(func(ctx context.Context) {
			defer close(ended)
			s := newSession(c, gen, ctx, leader.take())
			c.joined(s)
			s.run(func(ctx context.Context, end func()) {
				if c.watch(ctx, topics, s.assigned, end) {
					over()
					leave()
				}
			})
			c.left()
			if c.ctx.Err() != nil || groupCtx.Err() != nil {
				// Returning ends the generation, and unless the group knows by
				// then that it is being closed it would join again at once.
				// groupCtx alone may still be alive here: when c.ctx is
				// cancelled its children are told one after the other, and the
				// session may be told, and be done, before groupCtx is.
				<-ctx.Done()
			}
		})
		<-ended
	}
}

// askAnother tells whether a failed join was due to a broker that does not
// answer, and has the next member begin at another of those configured.
// kafka-go asks the first one that takes a connection who coordinates the
// group, and a frozen one takes connections: while it is the first, nobody
// would join however many others are well.
func (c *Consumer) askAnother(err error) bool {
	var answer kafka.Error
	if len(c.cfg.Brokers) < 2 || errors.As(err, &answer) {
		return false
	}
	c.bootstrap = (c.bootstrap + 1) % len(c.cfg.Brokers)
	return true
}

func (c *Consumer) groupConfig(topics []string, leader *leaderView) kafka.ConsumerGroupConfig {
	cfg := kafka.ConsumerGroupConfig{
		ID: c.cfg.GroupID, Brokers: slices.Concat(c.cfg.Brokers[c.bootstrap:], c.cfg.Brokers[:c.bootstrap]), Topics: topics,
		Dialer: c.network.dialer,
		GroupBalancers: []kafka.GroupBalancer{
			observedBalancer{kafka.RangeGroupBalancer{}, leader, c.existingPartitions},
			observedBalancer{kafka.RoundRobinGroupBalancer{}, leader, c.existingPartitions},
		},
		HeartbeatInterval: c.cfg.HeartbeatInterval, SessionTimeout: c.cfg.SessionTimeout,
		RebalanceTimeout: c.cfg.RebalanceTimeout,
		JoinGroupBackoff: c.cfg.JoinBackoff, Timeout: c.cfg.RequestTimeout,
		// Resolved by the fetcher, which can tell a fresh start from a
		// committed offset.
		StartOffset: kafka.FirstOffset,
	}
	if c.log.Core().Enabled(zap.DebugLevel) {
		cfg.Logger, cfg.ErrorLogger = kafkaLog{c.log}, kafkaLog{c.log}
	}
	return cfg
}

// watch looks for topics that appeared or went, upon which the member has to
// leave and join with others, and reports so. It compares names: one may appear
// while another goes. As leader of the group, which assigned the partitions it
// knew of, it also looks for more of them and ends the session: only a
// leader's joining again makes the group rebalance.
// kafka-go's own watch would create topics by asking for them, misses those
// that are missing at first, and makes one missing topic silence all others.
func (c *Consumer) watch(ctx context.Context, topics []string, assigned map[string]int, end func()) (changed bool) {
	gone := 0
	for routine.Sleep(ctx, c.cfg.WatchInterval) {
		existing, err := c.existingTopics(ctx)
		if err != nil {
			continue // fetching and heartbeats say so
		}
		consumed := 0
		for _, topic := range topics {
			if existing[topic] > 0 {
				consumed++
			}
		}
		if len(existing) > consumed {
			return true // one appeared
		}
		if consumed < len(topics) {
			if gone++; gone > 1 { // a broker that has just started may not know all topics yet
				return true
			}
			continue
		}
		gone = 0
		for _, topic := range topics {
			if assigned != nil && existing[topic] > assigned[topic] {
				c.log.Info("inbox: topic has more partitions than are assigned, joining again",
					zap.String(telemetry.FieldTopic, topic), zap.Int(telemetry.FieldPartitions, existing[topic]),
					zap.Int(telemetry.FieldAssigned, assigned[topic]))
				end()
				return false
			}
		}
	}
	return false
}
