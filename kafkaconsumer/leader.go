package kafkaconsumer

import (
	"sync"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
)

// leaderView is what this member assigned when it was the group's leader last.
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

// take returns the view and forgets it; nil means another member leads.
func (v *leaderView) take() map[string]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	partitions := v.partitions
	v.partitions = nil
	return partitions
}

// observedBalancer notes what the balancer of a leader gets to assign. kafka-go
// hands over nothing at all if one of the topics is gone, which would silence
// the others until everybody has noticed: then the leader looks for itself.
type observedBalancer struct {
	kafka.GroupBalancer
	view     *leaderView
	existing func() []kafka.Partition
}

// UserData implements kafka.GroupBalancer. It is asked for at the beginning of
// each join: what was assigned in one that failed does not count, another
// member may lead the next generation.
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

// existingPartitions are those of the topics that exist; none if that cannot be
// asked for.
func (c *Consumer) existingPartitions() []kafka.Partition {
	existing, err := c.existingTopics(c.ctx)
	if err != nil {
		// it looks again soon
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
