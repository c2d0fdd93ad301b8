package kafkaconsumer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/brief"
)

// reads reports whether the group reads a partition (contract 7.12).
func (c Config) reads(id int) bool { return c.Partitions == nil || slices.Contains(c.Partitions, id) }

// own returns those of the partitions 0 to n-1 that the group reads, in ascending order.
func (c Config) own(n int) []int {
	own := make([]int, 0, n)
	for id := range n {
		if c.reads(id) {
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
			if c.reads(a.ID) {
				return false
			}
			foreign[topic] = append(foreign[topic], a.ID)
			return true
		})
	}
	return foreign
}

// refusedErr says which assigned partitions the session does not read and why, nil if there are none.
func (s *session) refusedErr() error {
	return errors.Join(
		s.refused.err("the group's leader has assigned %d partitions that do not exist, such as %s: they are not read; "+
			"check who may join the group"),
		s.foreign.err("the group's leader has assigned %d partitions that option Partitions does not name, such as %s: "+
			"they are not read; give all members of the group the same Partitions"))
}

// unlisted says which named partition does not exist, nil if all do. The lock is held.
func (c *Consumer) unlisted() error {
	for _, topic := range c.cfg.Topics {
		if n := c.progress.listings[topic].partitions; n > 0 && slices.ContainsFunc(c.cfg.Partitions,
			func(id int) bool { return id >= n }) {
			return fmt.Errorf("option Partitions names %d, and topic %s has %d partitions: what does not exist is waited for",
				slices.Max(c.cfg.Partitions), brief.Name(topic), n)
		}
	}
	return nil
}
