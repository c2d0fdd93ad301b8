package kafkaconsumer

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Idle describes the group as seen by a member that has no partitions.
type Idle struct {
	// Members counts the group's members, Partitions those of the member's topics that exist. With
	// more members than partitions, idle members are normal. With fewer they can be normal too: of
	// several topics, the partitions of each are assigned starting from the first member.
	Members, Partitions int
	// Unassigned counts partitions that no member has, as seen in two checks in a row.
	Unassigned int
}

// idleWatch checks the group of a member that has no partitions.
type idleWatch struct {
	consumer *Consumer
	seen     int // unassigned partitions in the last check
	warned   bool
}

// check stores the group's state in Health, and warns once if the member could have partitions. A
// failed request does not affect consuming, so it is only a debug line.
func (w *idleWatch) check(ctx context.Context) {
	c := w.consumer
	idle, err := c.group(ctx)
	if err != nil {
		c.log.Debug("inbox: a member without partitions cannot see its group", zap.Error(err))
		return
	}
	// A group that is rebalancing may show a state that is already over, so count what two checks in a row have seen.
	idle.Unassigned, w.seen = min(idle.Unassigned, w.seen), idle.Unassigned
	c.setIdle(idle)
	if !w.warned && (idle.Unassigned > 0 || idle.Partitions > idle.Members) {
		w.warned = true
		c.log.Warn("inbox: member has no partitions although there are enough, or some that no member has",
			zap.Int(telemetry.FieldPartitions, idle.Partitions), zap.Int(telemetry.FieldMembers, idle.Members),
			zap.Int(telemetry.FieldUnassigned, idle.Unassigned))
	}
}

// group asks the coordinator for the group's members and what they are assigned.
func (c *Consumer) group(ctx context.Context) (*Idle, error) {
	existing, err := c.existingTopics(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	answer, err := c.network.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{c.cfg.GroupID}})
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", c.cfg.GroupID, err)
	}
	for _, g := range answer.Groups {
		if g.GroupID != c.cfg.GroupID {
			continue
		}
		if g.Error != nil {
			return nil, fmt.Errorf("describe group %q: %w", c.cfg.GroupID, g.Error)
		}
		if g.GroupState != "Stable" {
			return nil, fmt.Errorf("describe group %q: it is %s", c.cfg.GroupID, g.GroupState)
		}
		idle := &Idle{Members: len(g.Members)}
		for _, partitions := range existing {
			idle.Partitions += partitions
		}
		idle.Unassigned = idle.Partitions
		for _, m := range g.Members {
			for _, t := range m.MemberAssignments.Topics {
				if existing[t.Topic] > 0 {
					idle.Unassigned -= len(t.Partitions)
				}
			}
		}
		return idle, nil
	}
	return nil, fmt.Errorf("describe group %q: the answer is not about it: %w", c.cfg.GroupID, kafka.Unknown)
}

// setIdle stores the group's state for Health; nil in a generation that has not been checked yet.
func (c *Consumer) setIdle(idle *Idle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = idle
}
