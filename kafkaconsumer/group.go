package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// run keeps the consumer a member of its group until it is stopped.
func (c *Consumer) run() {
	defer close(c.done)
	defer c.setState(StateStopped)
	defer c.network.Cut()
	var copying sync.WaitGroup
	defer copying.Wait()
	if c.copier != nil {
		copying.Go(func() { c.copier.run(c.ctx, c.hardCtx) })
	}
	for c.ctx.Err() == nil {
		c.setState(StateWaiting)
		if topics := c.awaitTopics(); len(topics) > 0 {
			c.consume(topics)
		}
	}
}

// maxRefusalBackoff bounds the pause after a refused login, and so how late a corrected password is noticed.
const maxRefusalBackoff = 5 * time.Second

// awaitTopics waits until at least one of the topics exists and returns those that do. It returns
// none if the consumer is stopped. The requests never create a topic.
func (c *Consumer) awaitTopics() []string {
	retry := routine.Backoff{First: fetchBackoffFirst, Max: kafkaclient.MetadataTTL}
	refusals := routine.Backoff{First: kafkaclient.MetadataTTL, Max: maxRefusalBackoff}
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
			// The transport would keep logging in with the same password about twice a second.
			// Brokers log each try, and some of them lock the user out.
			c.network.CloseIdle()
			if !refusals.Wait(c.ctx) {
				return nil
			}
			continue
		}
		if len(existing) > 0 {
			return slices.Sorted(maps.Keys(existing))
		}
		if !retry.Wait(c.ctx) {
			return nil
		}
	}
}

// existingTopics returns the configured topics that exist, with the number of their partitions. It
// logs once which topics do not exist and which this client may not see.
func (c *Consumer) existingTopics(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	asked := time.Now()
	response, err := c.network.Kafka.Metadata(ctx, &kafka.MetadataRequest{Topics: c.cfg.Topics})
	if err != nil {
		return nil, fmt.Errorf("ask brokers %q for topics: %w", c.cfg.Brokers, err)
	}
	c.answered.Store(true)
	existing, denied := map[string]int{}, []string(nil)
	for _, topic := range response.Topics {
		switch {
		case topic.Error == nil && len(topic.Partitions) > 0:
			existing[topic.Name] = len(topic.Partitions)
		case errors.Is(topic.Error, kafka.TopicAuthorizationFailed): // also if the topic does not exist
			denied = append(denied, topic.Name)
		case topic.Error != nil && !errors.Is(topic.Error, kafka.UnknownTopicOrPartition) &&
			!errors.Is(topic.Error, kafka.LeaderNotAvailable):
			return nil, fmt.Errorf("ask brokers for topic %q: %w", brief.Name(topic.Name), topic.Error)
		}
	}
	var missing []string
	for _, topic := range c.cfg.Topics {
		if existing[topic] == 0 && !slices.Contains(denied, topic) {
			missing = append(missing, topic)
		}
	}
	c.setMissing(missing, denied)
	c.listed(existing, missing, asked)
	c.groupStart.missed(missing)
	return existing, nil
}

// consume is a member of the group for these topics until the consumer is stopped or other topics exist.
func (c *Consumer) consume(topics []string) {
	leader := &leaderView{}
	group, err := kafka.NewConsumerGroup(c.groupConfig(topics, leader))
	if err != nil {
		// Validate rejects every config that fails here.
		c.grouping.Begin(nil, fmt.Errorf("join group %q: %w", c.cfg.GroupID, err))
		routine.Sleep(c.ctx, c.cfg.joinBackoff())
		return
	}
	// Closing the group ends the generation and waits for its session, which can still commit. Then it leaves the group.
	closed := make(chan struct{})
	leave := sync.OnceFunc(func() {
		go func() {
			defer close(closed)
			_ = group.Close() // never fails
		}()
	})
	defer func() { leave(); <-closed }()
	defer context.AfterFunc(c.ctx, leave)()

	groupCtx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	for groupCtx.Err() == nil {
		c.setState(StateJoining)
		gen, err := group.Next(groupCtx)
		if groupCtx.Err() != nil {
			return
		}
		if err != nil {
			if !errors.Is(err, kafka.RebalanceInProgress) { // part of every ordinary join
				c.grouping.Begin(nil, c.cfg.explain(fmt.Errorf("join group %q: %w", c.cfg.GroupID, err)))
			}
			if errors.Is(err, kafka.TopicAuthorizationFailed) {
				// The group's leader may not see one of the topics. Joining without it keeps the others.
				routine.Sleep(c.ctx, c.cfg.joinBackoff())
				return
			}
			if c.askAnother(err) {
				leave()
				routine.Sleep(c.ctx, c.cfg.joinBackoff())
				return
			}
			continue
		}
		ended := make(chan struct{})
		gen.Start(func(ctx context.Context) {
			defer close(ended)
			foreign := c.cfg.keepOwn(gen)
			existing := c.existingOf(ctx, gen.Assignments)
			committed, err := c.committedOffsets(ctx, gen.Assignments, existing)
			if err == nil {
				s := newSession(c, gen, ctx, leader.take(), existing, committed)
				s.foreign = foreign
				c.joined(s)
				err = s.run(func(ctx context.Context, end func()) {
					if c.watch(ctx, topics, s, end) {
						cancel()
						leave()
					}
				})
				c.left()
			}
			if err == nil || kafkaclient.IsAny(err, kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress) {
				c.committing.Forget(nil) // the next generation begins at what is committed
			} else {
				// Joining again at once would lead to the same refusal, for example because a right is missing.
				routine.Sleep(ctx, c.cfg.joinBackoff())
			}
			if c.ctx.Err() != nil || groupCtx.Err() != nil {
				// Returning ends the generation. The group would then join again at once, unless it already knows that it is being
				// closed. groupCtx may be alive here although c.ctx is not: a cancelled context cancels its children one after the
				// other, so the session can learn of it, and finish, before groupCtx does.
				<-ctx.Done()
			}
		})
		<-ended
	}
}

// askAnother reports whether a join failed because a broker does not answer. If so, the next member
// starts with another configured broker. kafka-go asks the first broker that accepts a connection
// who coordinates the group, and a frozen broker accepts connections. As long as that one comes
// first, no join would succeed, however many other brokers are healthy.
func (c *Consumer) askAnother(err error) bool {
	if _, answered := errors.AsType[kafka.Error](err); answered || len(c.cfg.Brokers) < 2 {
		return false
	}
	c.bootstrap = (c.bootstrap + 1) % len(c.cfg.Brokers)
	return true
}

func (c *Consumer) groupConfig(topics []string, leader *leaderView) kafka.ConsumerGroupConfig {
	cfg := kafka.ConsumerGroupConfig{
		ID: c.cfg.GroupID, Brokers: slices.Concat(c.cfg.Brokers[c.bootstrap:], c.cfg.Brokers[:c.bootstrap]), Topics: topics,
		Dialer: c.network.Dialer,
		GroupBalancers: []kafka.GroupBalancer{
			observedBalancer{kafka.RangeGroupBalancer{}, leader, c.existingPartitions, c.cfg.names},
			observedBalancer{kafka.RoundRobinGroupBalancer{}, leader, c.existingPartitions, c.cfg.names},
		},
		HeartbeatInterval: c.cfg.HeartbeatInterval, SessionTimeout: c.cfg.SessionTimeout,
		RebalanceTimeout: c.cfg.RebalanceTimeout, JoinGroupBackoff: c.cfg.joinBackoff(), Timeout: c.cfg.RequestTimeout,
		// The fetcher resolves the start: it can tell a new group from a committed offset.
		StartOffset: kafka.FirstOffset,
	}
	if c.log.Core().Enabled(zap.DebugLevel) {
		cfg.Logger, cfg.ErrorLogger = kafkaLog{c.log}, kafkaLog{c.log}
	}
	return cfg
}

// watch polls for topics that appeared or disappeared and reports true if there are any: the member
// then has to leave and join with the new list. It compares names, since one topic may appear while
// another disappears. On the group's leader, which assigned the partitions that it knew of, it also
// polls for added partitions and ends the session: only when the leader joins again does the group
// rebalance. The watch ends the session, too, once a partition exists that the session has refused.
//
// We do not use kafka-go's own watch. It creates the topics that it asks for, misses topics that do
// not exist at first, and one missing topic keeps it from seeing changes of all others.
func (c *Consumer) watch(ctx context.Context, topics []string, s *session, end func()) (changed bool) {
	gone := 0
	for routine.Sleep(ctx, c.cfg.WatchInterval) {
		existing, err := c.existingTopics(ctx)
		if err != nil {
			continue // fetching and heartbeats report it
		}
		consumed := 0
		for _, topic := range topics {
			if existing[topic] > 0 {
				consumed++
			}
		}
		if len(existing) > consumed {
			return true // a topic appeared
		}
		if consumed < len(topics) {
			if gone++; gone > 1 { // a broker that has just started may not know all topics yet
				return true
			}
			continue
		}
		gone = 0
		if s.refused.exists(existing) {
			c.log.Info("inbox: partitions that were assigned before they were known exist now, joining again")
			end()
			return false
		}
		assigned := s.assigned
		for _, topic := range topics {
			if assigned != nil && existing[topic] > assigned[topic] {
				c.log.Info("inbox: topic has new partitions, rejoining the group",
					zap.String(telemetry.FieldTopic, topic), zap.Int(telemetry.FieldPartitions, existing[topic]),
					zap.Int(telemetry.FieldAssigned, assigned[topic]))
				end()
				return false
			}
		}
	}
	return false
}

// leaderView holds the assignments that this member made when it last was the group's leader.
type leaderView struct {
	mu         sync.Mutex
	partitions map[string]int // by topic
}

func (v *leaderView) set(partitions []kafka.Partition) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.partitions = map[string]int{}
	for _, p := range partitions {
		v.partitions[p.Topic]++
	}
}

// take returns the view and clears it. Nil means that another member leads.
func (v *leaderView) take() map[string]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	partitions := v.partitions
	v.partitions = nil
	return partitions
}

// observedBalancer records the partitions that exist when the leader assigns, and has its balancer assign those of them
// that the group reads. kafka-go passes no partitions at all if one of the topics is gone. Until every member had
// noticed, no topic would be consumed. In that case the leader asks for the partitions itself.
type observedBalancer struct {
	kafka.GroupBalancer
	view     *leaderView
	existing func() []kafka.Partition
	names    func(id int) bool
}

// UserData implements kafka.GroupBalancer. kafka-go calls it at the beginning of each join, so it clears the view: the
// assignments of a failed join do not count, because another member may lead the next generation.
func (b observedBalancer) UserData() ([]byte, error) {
	b.view.take()
	return b.GroupBalancer.UserData()
}

// AssignGroups implements kafka.GroupBalancer.
func (b observedBalancer) AssignGroups(
	members []kafka.GroupMember, partitions []kafka.Partition,
) kafka.GroupMemberAssignments {
	if len(partitions) == 0 {
		partitions = b.existing()
	}
	b.view.set(partitions)
	return b.GroupBalancer.AssignGroups(members, slices.DeleteFunc(slices.Clone(partitions),
		func(p kafka.Partition) bool { return !b.names(p.ID) }))
}

// existingPartitions returns the partitions of the topics that exist, none if that cannot be asked for.
func (c *Consumer) existingPartitions() []kafka.Partition {
	existing, err := c.existingTopics(c.ctx)
	if err != nil {
		// the next poll comes soon
		c.log.Debug("inbox: the group's leader does not know the partitions of its topics", zap.Error(err))
		return nil
	}
	var partitions []kafka.Partition
	for topic, n := range existing {
		for id := range n {
			partitions = append(partitions, kafka.Partition{Topic: topic, ID: id})
		}
	}
	return partitions
}

// existingOf returns the number of partitions of each topic, as soon as they include all that are assigned, or once it
// has asked for them for long enough that the brokers must know them. Nil means that ctx ended first.
func (c *Consumer) existingOf(ctx context.Context, assignments map[string][]kafka.PartitionAssignment) map[string]int {
	retry := routine.Backoff{First: fetchBackoffFirst, Max: kafkaclient.MetadataTTL}
	for deadline := time.Now().Add(2 * kafkaclient.MetadataTTL); ; {
		existing, err := c.existingTopics(ctx)
		if err == nil && (len(refuse(assignments, existing)) == 0 || time.Now().After(deadline)) {
			return existing
		}
		if err != nil && ctx.Err() == nil {
			c.grouping.Begin(nil, c.cfg.explain(err))
		}
		if !retry.Wait(ctx) {
			return nil
		}
	}
}

// refusal holds, by topic, the assigned partitions that do not exist, because their numbers are too high. Who may join
// the group can lead it, and can assign anything.
type refusal map[string][]int

// refuse returns the assigned partitions that do not exist.
func refuse(assignments map[string][]kafka.PartitionAssignment, existing map[string]int) refusal {
	r := refusal{}
	for topic, assigned := range assignments {
		for _, a := range assigned {
			if a.ID < 0 || a.ID >= existing[topic] {
				r[topic] = append(r[topic], a.ID)
			}
		}
	}
	return r
}

// exists reports whether one of the partitions exists by now.
func (r refusal) exists(existing map[string]int) bool {
	for topic, ids := range r {
		if slices.ContainsFunc(ids, func(id int) bool { return id >= 0 && id < existing[topic] }) {
			return true
		}
	}
	return false
}

// sum counts the partitions and names one of them.
func (r refusal) sum() (n int, example string) {
	for topic, ids := range r {
		n += len(ids)
		example = fmt.Sprintf("%s/%d", brief.Name(topic), ids[0])
	}
	return n, example
}

// Idle describes the group as seen by a member that has no partitions.
type Idle struct {
	// Members counts the group's members, Partitions the existing partitions that it reads. With more members than
	// partitions, idle members are normal. With fewer they can be normal too: of several topics, the partitions of
	// each are assigned starting from the first member.
	Members, Partitions int
	// Unassigned counts partitions that no member has, as seen in two checks in a row.
	Unassigned int
}

// groupWatch checks the group of a member that has no partitions, or that names those that it reads.
type groupWatch struct {
	session *session
	seen    int // unassigned partitions in the last check
	warned  bool
}

// check stores the group's state in Health, and warns once if no member has a partition, or this one could have some. A
// failed request does not affect consuming, so it is only a debug line.
func (w *groupWatch) check(ctx context.Context) {
	c, without := w.session.consumer, len(w.session.partitions) == 0
	group, err := c.group(ctx)
	if err != nil {
		c.log.Debug("inbox: a member cannot see its group", zap.Error(err))
		return
	}
	// A group that is rebalancing may show a state that is already over, so count what two checks in a row have seen.
	group.Unassigned, w.seen = min(group.Unassigned, w.seen), group.Unassigned
	c.mu.Lock()
	if without {
		c.seen.Idle = group
	} else {
		c.unassigned = group.Unassigned
	}
	c.mu.Unlock()
	if !w.warned && (group.Unassigned > 0 || without && group.Partitions > group.Members) {
		w.warned = true
		message := "inbox: member has no partitions although there are enough, or some that no member has"
		if !without {
			message = "inbox: no member has some partitions that the group reads"
		}
		c.log.Warn(message,
			zap.Int(telemetry.FieldPartitions, group.Partitions), zap.Int(telemetry.FieldMembers, group.Members),
			zap.Int(telemetry.FieldUnassigned, group.Unassigned))
	}
}

// group asks the coordinator for the group's members and their assignments.
func (c *Consumer) group(ctx context.Context) (*Idle, error) {
	existing, err := c.existingTopics(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	answer, err := c.network.Kafka.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{c.cfg.GroupID}})
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", c.cfg.GroupID, err)
	}
	for _, g := range answer.Groups {
		switch {
		case g.GroupID != c.cfg.GroupID:
			continue
		case g.Error != nil:
			return nil, fmt.Errorf("describe group %q: %w", c.cfg.GroupID, g.Error)
		case g.GroupState != "Stable":
			return nil, fmt.Errorf("describe group %q: it is %s", c.cfg.GroupID, g.GroupState)
		}
		assigned := map[partitionKey]bool{}
		for _, m := range g.Members {
			for _, t := range m.MemberAssignments.Topics {
				for _, id := range t.Partitions {
					assigned[partitionKey{t.Topic, id}] = true
				}
			}
		}
		idle := &Idle{Members: len(g.Members)}
		for topic, n := range existing {
			for _, id := range c.cfg.own(n) {
				idle.Partitions++
				if !assigned[partitionKey{topic, id}] {
					idle.Unassigned++
				}
			}
		}
		return idle, nil
	}
	return nil, fmt.Errorf("describe group %q: the answer is not about it: %w", c.cfg.GroupID, kafka.Unknown)
}
