package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"

	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// waitsToReport is how often a fetcher may find that its new group has not begun before that is
// reported. The leader needs a moment to commit.
const waitsToReport = 8

// begin finds the offset to start at and retries until it is known.
func (f *fetcher) begin(committed int64) (int64, bool) {
	p := f.partition
	if committed >= 0 {
		p.begin(committed, false)
		return committed, true
	}
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	for waits := 0; ; {
		at, err := f.startOffset()
		if err == nil {
			p.found = at.log
			p.begin(at.offset, false)
			f.succeeded()
			return at.offset, true
		}
		if p.ctx.Err() != nil {
			return 0, false
		}
		if waits++; !errors.Is(err, errNotBegun) || waits > waitsToReport {
			f.failed(err)
		}
		if !retry.Wait(p.ctx) {
			return 0, false
		}
	}
}

// startOffset finds where to start a partition that had no committed offset when it was assigned. It asks again: the
// leader may have begun the group. Once the group has begun, partitions without an offset start at First (see
// beginGroup).
//
// All offsets come from one answer. With one answer about this partition and another about the group:
//
//  1. The first answer says that this partition has no offset.
//  2. The leader begins the group and commits an offset for this partition.
//  3. The second answer says that the group has begun. The fetcher starts at First and ignores the
//     committed offset.
func (f *fetcher) startOffset() (position, error) {
	p := f.partition
	ctx, cancel := context.WithTimeout(p.ctx, 2*f.cfg.RequestTimeout)
	defer cancel()
	group, err := f.groupOffsets(ctx, map[string][]int{p.topic: {p.id}})
	if err != nil {
		return position{}, fmt.Errorf("committed offset of %s/%d: %w", p.topic, p.id, err)
	}
	if committed := group.of[p.topic][p.id]; committed.offset >= 0 {
		return committed, nil
	}
	switch {
	case f.cfg.StartOffset == None:
		return position{}, fmt.Errorf("%s/%d has %w in group %q: stop its members and set one (StartOffset None)",
			p.topic, p.id, errNoOffset, f.cfg.GroupID)
	case f.cfg.StartOffset == Last && !group.begun:
		return position{}, errNotBegun
	}
	first, err := f.listOffset(kafka.FirstOffset)
	return position{offset: first}, err
}

// gap describes why an offset is out of range. A broker that has just become the leader, or wrongly believes to be it,
// may refuse an offset that is within the log. The error is then one for which asking again helps.
func (f *fetcher) gap(offset int64) error {
	gap := &OffsetGapError{Topic: f.partition.topic, Partition: f.partition.id, Offset: offset}
	var err error
	if gap.First, err = f.listOffset(kafka.FirstOffset); err != nil {
		return err
	}
	if gap.Last, err = f.listOffset(kafka.LastOffset); err != nil {
		return err
	}
	if gap.First <= offset && offset <= gap.Last {
		return fmt.Errorf("fetch %s/%d from offset %d: %w, although the log holds %d to %d",
			f.partition.topic, f.partition.id, offset, kafka.OffsetOutOfRange, gap.First, gap.Last-1)
	}
	return gap
}

// epochFell describes a batch whose leader epoch is lower than the previous batch's.
func (f *fetcher) epochFell(b kafkawire.Batch) error {
	first, err := f.listOffset(kafka.FirstOffset)
	if err != nil {
		return err
	}
	return &EpochError{From: f.epoch, To: b.Epoch, Offset: b.Base, First: first}
}

// listOffset asks for the first or last offset of the log.
func (f *fetcher) listOffset(at int64) (int64, error) {
	return f.network.listOffset(f.partition.ctx, f.partition.topic, f.partition.id, at, ReadUncommitted)
}

// listOffset asks for the first or last offset of a partition. With ReadCommitted the last one is the last stable
// offset, where the first open transaction begins.
func (n *network) listOffset(
	ctx context.Context, topic string, partition int, at int64, isolation Isolation,
) (int64, error) {
	key := partitionKey{topic, partition}
	found := n.listOffsets(ctx, []partitionKey{key}, at, isolation)[key]
	return found.offset, found.err
}

// place is the first or last offset of a partition, or why it is unknown.
type place struct {
	offset int64
	err    error
}

// listedAtOnce is how many partitions are asked about at once. kafka-go sends one request for each of them, and opens a
// connection for each that has no answer yet.
const listedAtOnce = 16

// listOffsets is listOffset for several partitions, which are sorted by topic. The result has an entry for each.
func (n *network) listOffsets(
	ctx context.Context, of []partitionKey, at int64, isolation Isolation,
) map[partitionKey]place {
	all := make(map[partitionKey]place, len(of))
	var err error
	for some := range slices.Chunk(of, listedAtOnce) {
		var found map[partitionKey]place
		if err == nil { // else no broker could be reached for the ones before
			found, err = n.listSome(ctx, some, at, isolation)
		}
		for _, key := range some {
			its, known := found[key]
			switch {
			case known:
			case err != nil:
				its.err = err
			default:
				its.err = fmt.Errorf("the answer is not about it: %w", kafka.Unknown)
			}
			if its.err != nil {
				its.err = fmt.Errorf("list offsets of %s/%d: %w", key.topic, key.id, its.err)
			}
			all[key] = its
		}
	}
	return all
}

// listSome sends one request and returns what is in the answer. It fails if there is no answer.
func (n *network) listSome(
	ctx context.Context, of []partitionKey, at int64, isolation Isolation,
) (map[partitionKey]place, error) {
	request := &listoffsets.Request{ReplicaID: -1, IsolationLevel: isolation.level()}
	for i, key := range of {
		if i == 0 || of[i-1].topic != key.topic {
			request.Topics = append(request.Topics, listoffsets.RequestTopic{Topic: key.topic})
		}
		topic := &request.Topics[len(request.Topics)-1]
		topic.Partitions = append(topic.Partitions, listoffsets.RequestPartition{Partition: int32(key.id),
			CurrentLeaderEpoch: -1, Timestamp: at})
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	answer, err := n.Kafka.Transport.RoundTrip(ctx, n.Kafka.Addr, request)
	if err != nil {
		return nil, err
	}
	response, ok := answer.(*listoffsets.Response)
	if !ok {
		return nil, fmt.Errorf("the answer is %T: %w", answer, kafka.Unknown)
	}
	found := map[partitionKey]place{}
	for _, topic := range response.Topics {
		for _, p := range topic.Partitions {
			its := place{offset: p.Offset}
			if p.ErrorCode != 0 {
				its.err = kafka.Error(p.ErrorCode)
			} else if p.Offset < 0 && at < 0 { // no record at a time or later is no error
				its.err = fmt.Errorf("the answer is offset %d: %w", p.Offset, kafka.Unknown)
			}
			found[partitionKey{topic.Topic, int(p.Partition)}] = its
		}
	}
	return found, nil
}

// groupStart remembers what a consumer has learned about where its group begins.
type groupStart struct {
	// begun is true once a committed offset of the group was seen, or was committed here. It stays true when all of them
	// disappear, as when a topic is deleted: the group is not new because of that.
	begun atomic.Bool

	mu sync.Mutex
	// absent holds topics that were once found missing. When such a topic appears, all of its
	// records came after the start.
	absent map[string]bool
}

func (g *groupStart) missed(topics []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, topic := range topics {
		g.absent[topic] = true
	}
}

// offsetOf returns where a group without any committed offset begins a topic.
func (g *groupStart) offsetOf(topic string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun.Load() || g.absent[topic] {
		return kafka.FirstOffset
	}
	return kafka.LastOffset
}

// errNotBegun is why a partition waits before its first fetch.
var errNotBegun = errors.New("the new group waits for its leader to commit where it begins (StartOffset Last)")

// errNoOffset is why a partition is not read with StartOffset None.
var errNoOffset = errors.New("no committed offset")

// groupOffsets holds the committed offsets of a group, -1 where there is none.
type groupOffsets struct {
	of    map[string]map[int]position
	begun bool // whether the group has at least one committed offset
}

// committedOffsets asks for the committed offsets of the assigned partitions that exist, until it knows them. kafka-go
// has asked, too, but does not return their metadata. It fails if ctx ends, or if a right is missing: after joining
// again, the member may consume the other topics.
func (c *Consumer) committedOffsets(
	ctx context.Context, assignments map[string][]kafka.PartitionAssignment, existing map[string]int,
) (map[string]map[int]position, error) {
	of := map[string][]int{}
	for topic, assigned := range assignments {
		for _, a := range assigned {
			if a.ID >= 0 && a.ID < existing[topic] {
				of[topic] = append(of[topic], a.ID)
			}
		}
	}
	if len(of) == 0 {
		return nil, ctx.Err()
	}
	retry := routine.Backoff{First: fetchBackoffFirst, Max: kafkaclient.MetadataTTL}
	for tries := 1; ; tries++ {
		group, err := c.groupOffsets(ctx, of)
		if err == nil || ctx.Err() != nil {
			return group.of, err
		}
		err = fmt.Errorf("committed offsets of group %q: %w", c.cfg.GroupID, err)
		if kafkaclient.Lost(err) {
			c.network.CloseIdle() // they may be as old as the lost one
		}
		if !kafkaclient.Lost(err) || tries >= lossesToReport {
			c.grouping.Begin(nil, c.cfg.explain(err))
		}
		if kafkaclient.IsAny(err, kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed) || !retry.Wait(ctx) {
			return nil, err
		}
	}
}

// groupOffsets asks the coordinator for committed offsets in one request: of the given partitions and, with StartOffset
// Last, of all partitions of the consumer's topics. A response that leaves out a partition is an error.
func (c *Consumer) groupOffsets(ctx context.Context, of map[string][]int) (groupOffsets, error) {
	asked := map[string][]int{}
	if c.cfg.StartOffset == Last {
		existing, err := c.existingTopics(ctx)
		if err != nil {
			return groupOffsets{}, err
		}
		for topic, n := range existing {
			for id := range n {
				asked[topic] = append(asked[topic], id)
			}
		}
	}
	for topic, partitions := range of {
		known := len(asked[topic])
		for _, id := range partitions {
			if id < 0 || id >= known {
				asked[topic] = append(asked[topic], id)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	response, err := c.network.Kafka.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: c.cfg.GroupID, Topics: asked})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		return groupOffsets{}, err
	}
	offsets := groupOffsets{of: map[string]map[int]position{}}
	for topic, partitions := range response.Topics {
		offsets.of[topic] = map[int]position{}
		for _, found := range partitions {
			if found.Error != nil {
				return groupOffsets{}, fmt.Errorf("%s/%d: %w", topic, found.Partition, found.Error)
			}
			offsets.of[topic][found.Partition] = position{max(found.CommittedOffset, -1), logOf(found.Metadata)}
			offsets.begun = offsets.begun || found.CommittedOffset >= 0
		}
	}
	for topic, partitions := range asked {
		for _, id := range partitions {
			if _, ok := offsets.of[topic][id]; !ok {
				return groupOffsets{}, fmt.Errorf("the answer is not about %s/%d: %w", topic, id, kafka.Unknown)
			}
		}
	}
	if offsets.begun {
		c.groupStart.begun.Store(true)
	}
	return offsets, nil
}

// beginGroup starts a new group at Last if this member leads it. It commits the end offsets of all partitions that it
// assigned, in one request. It retries until that succeeded, or until it finds that the group has offsets. Before that,
// no member reads a partition without an offset. After it, a partition without an offset must be one that appeared
// later, so it is read from its first record.
//
// We refused two simpler designs:
//
//   - Each member commits for its own partitions. The first commit makes the group look old to the
//     other members, and these then read everything from the first record.
//   - Each member goes by what it remembers. After a restart it takes partitions that were added
//     in between for old ones, and skips their records.
//
// A commit must not pass what another member has read. No member has read anything: all of them wait while the group
// has no offset, a generation has one leader, and the coordinator refuses commits of earlier generations. If the
// response to the commit is lost, the next try asks first whether the group has begun. If the lost request arrives even
// later, the repeat carries the same offsets and not ends that have moved on. So at worst it moves a commit back to
// where the members began.
func (s *session) beginGroup(ctx context.Context) {
	c := s.consumer
	if c.cfg.StartOffset != Last || len(s.assigned) == 0 || s.resumed {
		return
	}
	defer c.fetching.Forget(s)
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	starts := map[string][]offsetCommit{}
	committer := &committer{session: s}
	defer committer.hangUp()
	for {
		err := s.tryBeginGroup(ctx, committer, starts)
		if err == nil {
			c.fetching.End(s)
			return
		}
		if ctx.Err() != nil {
			return
		}
		// With either of these the session ends soon.
		if !errors.Is(err, kafka.RebalanceInProgress) && !errors.Is(err, kafka.IllegalGeneration) {
			c.fetching.Begin(s, c.cfg.explain(fmt.Errorf("begin group %q: %w", c.cfg.GroupID, err)))
		}
		if !retry.Wait(ctx) {
			return
		}
	}
}

// tryBeginGroup commits the starts of all assigned partitions unless the group has offsets. It adds
// the starts that it had to ask for to starts, so that a repeated try commits the same ones.
//
// It asks for a topic's ID before the ends of its logs. If the topic is created again in between, the ends of the new
// logs are committed as offsets of the deleted ones, and the new ones are read from their start. In the other order,
// the end of a deleted log would count for the new one.
func (s *session) tryBeginGroup(ctx context.Context, committer *committer, starts map[string][]offsetCommit) error {
	c := s.consumer
	if err := committer.connect(ctx); err != nil { // first: it may take seconds, in which the group may begin
		return err
	}
	group, err := c.groupOffsets(ctx, nil)
	if err != nil || group.begun {
		return err
	}
	for topic, n := range s.assigned {
		own := c.cfg.own(n)
		if len(starts[topic]) == len(own) {
			continue
		}
		id, cluster, err := committer.conn.TopicID(ctx, topic)
		if err != nil {
			committer.hangUp()
			return fmt.Errorf("ask for the ID of topic %s: %w", topic, err)
		}
		log := logID{id, cluster}
		for _, id := range own[len(starts[topic]):] {
			offset, err := c.network.listOffset(ctx, topic, id, c.groupStart.offsetOf(topic), c.cfg.Isolation)
			if err != nil {
				return err
			}
			starts[topic] = append(starts[topic], offsetCommit{topic, id, position{offset, log}})
		}
	}
	if len(starts) > 0 { // else no partition that the group reads exists: what appears later begins at its first record
		if err := committer.try(ctx, c.hardCtx, slices.Concat(slices.Collect(maps.Values(starts))...)); err != nil {
			return fmt.Errorf("commit where it begins: %w", err)
		}
	}
	c.groupStart.begun.Store(true)
	return nil
}
