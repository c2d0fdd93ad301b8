package kafkaconsumer

import (
	"sync"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
)

// leaderView holds what this member assigned when it last was the group's leader.
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

// observedBalancer records what the leader's balancer gets to assign. kafka-go passes no partitions
// at all if one of the topics is gone. Until every member had noticed, no topic would be consumed.
// In that case the leader asks for the partitions itself.
type observedBalancer struct {
	kafka.GroupBalancer
	view     *leaderView
	existing func() []kafka.Partition
}

// UserData implements kafka.GroupBalancer. kafka-go calls it at the beginning of each join, so it
// clears the view: what was assigned in a failed join does not count, because another member may
// lead the next generation.
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
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// existingPartitions returns the partitions of the topics that exist, none if that cannot be asked
// for.
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
