package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/routine"
)

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
		if g.absent == nil {
			g.absent = map[string]bool{}
		}
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

// groupOffsets holds the committed offsets of a group, -1 where there is none.
type groupOffsets struct {
	of    map[string]map[int]int64
	begun bool // whether the group has at least one committed offset
}

// groupOffsets asks the coordinator for committed offsets in one request: of the given partition and, with StartOffset
// Last, of all partitions of the consumer's topics. A response that leaves out a partition is an error.
func (c *Consumer) groupOffsets(ctx context.Context, topic string, partition int) (groupOffsets, error) {
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
	if topic != "" && !slices.Contains(asked[topic], partition) {
		asked[topic] = append(asked[topic], partition)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	response, err := c.network.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: c.cfg.GroupID, Topics: asked})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		return groupOffsets{}, err
	}
	offsets := groupOffsets{of: map[string]map[int]int64{}}
	for topic, partitions := range response.Topics {
		offsets.of[topic] = map[int]int64{}
		for _, found := range partitions {
			if found.Error != nil {
				return groupOffsets{}, fmt.Errorf("%s/%d: %w", topic, found.Partition, found.Error)
			}
			offsets.of[topic][found.Partition] = found.CommittedOffset
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
// response to the commit is lost, the commit may be repeated while other members already read. The repeat carries the
// same offsets and not ends that have moved on, so at worst it moves a commit back to where those members began.
func (s *session) beginGroup(ctx context.Context) {
	c := s.consumer
	if c.cfg.StartOffset != Last || len(s.assigned) == 0 || s.resumed {
		return
	}
	defer c.fetching.Forget(s)
	retry := routine.Backoff{First: fetchBackoffFirst, Max: maxFetchBackoff}
	starts := map[string]map[int]int64{}
	for {
		err := s.tryBeginGroup(ctx, starts)
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
func (s *session) tryBeginGroup(ctx context.Context, starts map[string]map[int]int64) error {
	c := s.consumer
	group, err := c.groupOffsets(ctx, "", 0)
	if err != nil || group.begun {
		return err
	}
	for topic, n := range s.assigned {
		if starts[topic] == nil {
			starts[topic] = map[int]int64{}
		}
		for id := range n {
			if _, known := starts[topic][id]; known {
				continue
			}
			offset, err := c.network.listOffset(ctx, topic, id, c.groupStart.offsetOf(topic), c.cfg.Isolation)
			if err != nil {
				return err
			}
			starts[topic][id] = offset
		}
	}
	if err := s.commit(starts); err != nil {
		return fmt.Errorf("commit where it begins: %w", err)
	}
	c.groupStart.begun.Store(true)
	return nil
}
