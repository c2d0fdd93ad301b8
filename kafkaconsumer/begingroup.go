package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"
)

// groupStart is what a consumer remembers about the beginning of its group.
type groupStart struct {
	// begun: a committed offset of the group was seen, or committed. Should all
	// of them be gone later, as those of a topic that is deleted are, then the
	// group is not new for that.
	begun atomic.Bool

	mu sync.Mutex
	// absent are topics that were found missing: all that is in them when they
	// appear came after the start.
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

// offsetOf says where a group that is new to the brokers begins a topic.
func (g *groupStart) offsetOf(topic string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun.Load() || g.absent[topic] {
		return kafka.FirstOffset
	}
	return kafka.LastOffset
}

// errNotBegun is why a partition waits.
var errNotBegun = errors.New("the new group waits for its leader to commit where it begins (StartOffset Last)")

// groupOffsets are the committed offsets of a group, -1 where there is none.
type groupOffsets struct {
	of    map[string]map[int]int64
	begun bool // there is one
}

// groupOffsets asks the coordinator for the offsets of all partitions of the
// consumer's topics, and of the one that is given, in one request. An answer
// that leaves one out is an error.
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

// beginGroup begins a new group at Last if this member leads it: it commits the
// ends of all partitions that it assigned, in one request, and tries until that
// is done or found to have been. Until then no member reads a partition that
// has no offset. From then on the group has offsets, and whatever has none
// appeared later: it is read from its first record.
//
// If each member did so for its own partitions, the first to commit would make
// the group look old to the others, and these would read all there is. A member
// that went by what it remembers instead would after a restart take partitions
// added meanwhile for old ones, and skip what is in them.
//
// A commit must not pass what another member has read. None has read anything:
// members wait while the group has no offset, there is one leader in a
// generation, and the coordinator refuses a commit of a generation before. If
// the answer to the commit is lost, it may be made once more while others read
// from the first: then with the same offsets, not with ends that have moved on,
// so at worst it moves a commit back to where they began.
func (s *session) beginGroup(ctx context.Context) {
	c := s.consumer
	if c.cfg.StartOffset != Last || len(s.assigned) == 0 || s.resumed {
		return
	}
	defer c.fetching.Forget(s)
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
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
		// then the session ends soon
		if !errors.Is(err, kafka.RebalanceInProgress) && !errors.Is(err, kafka.IllegalGeneration) {
			c.fetching.Begin(s, c.cfg.explain(fmt.Errorf("begin group %q: %w", c.cfg.GroupID, err)))
		}
		if !retry.wait(ctx) {
			return
		}
	}
}

// tryBeginGroup adds to starts what is not known yet.
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
