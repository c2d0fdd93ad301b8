package kafkaconsumer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"
)

// names reports whether the group reads a partition (contract 7.12).
func (c Config) names(id int) bool { return c.Partitions == nil || slices.Contains(c.Partitions, id) }

// own returns those of the partitions 0 to n-1 that the group reads, in ascending order.
func (c Config) own(n int) []int {
	own := make([]int, 0, n)
	for id := range n {
		if c.names(id) {
			own = append(own, id)
		}
	}
	return own
}

// keepOwn removes from a generation's assignments what the group does not read, and returns it. The leader has another
// list then, for example while a new one is being deployed. Such a partition may have another owner already.
func (c Config) keepOwn(gen *kafka.Generation) refusal {
	foreign := refusal{}
	for topic, assigned := range gen.Assignments {
		gen.Assignments[topic] = slices.DeleteFunc(assigned, func(a kafka.PartitionAssignment) bool {
			if c.names(a.ID) {
				return false
			}
			foreign[topic] = append(foreign[topic], a.ID)
			return true
		})
	}
	return foreign
}

// assignmentErr says which partitions are assigned to the member and not read, and why. It is nil if there are none.
func (s *session) assignmentErr() error {
	var all []error
	if n, example := s.refused.sum(); n > 0 {
		all = append(all, fmt.Errorf("the group's leader has assigned %d partitions that do not exist, such as %s: they are "+
			"not read; check who may join the group", n, example))
	}
	if n, example := s.foreign.sum(); n > 0 {
		all = append(all, fmt.Errorf("the group's leader has assigned %d partitions that option Partitions does not name, "+
			"such as %s: they are not read; give all members of the group the same Partitions", n, example))
	}
	return errors.Join(all...)
}

// namedErr says which partitions that Config.Partitions names no member can read. It is nil if there are none. The lock
// is held.
func (c *Consumer) namedErr() error {
	if c.cfg.Partitions == nil {
		return nil
	}
	var all []error
	if n := c.unassigned; n > 0 {
		all = append(all, fmt.Errorf("%d partitions that option Partitions names are assigned to no member: give all members "+
			"of the group the same Partitions", n))
	}
	most := 0 // a smaller topic has none of the others' higher partitions, and nothing to wait for
	for _, its := range c.progress.listings {
		most = max(most, its.partitions)
	}
	if id := slices.Max(c.cfg.Partitions); most > 0 && id >= most {
		all = append(all, fmt.Errorf("option Partitions names %d, and no topic has more than %d partitions: those that do "+
			"not exist are waited for", id, most))
	}
	return errors.Join(all...)
}
