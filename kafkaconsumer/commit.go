package kafkaconsumer

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// committer is the only one to commit in its generation, with one request in
// flight, so that commits can neither overtake each other nor move back. But
// where a new group begins is committed before it has anything to (beginGroup).
type committer struct {
	gen        *kafka.Generation
	partitions []*partition
	interval   time.Duration
	// another commits by another connection than the generation's.
	another func(offsets map[string]map[int]int64) error
	// done is told the result of each commit.
	done func(error)

	failed bool
}

// run commits what is due every interval until ctx ends or a commit fails, and
// reports whether none failed. A failed commit means that the generation is
// over or the coordinator gone: the member has to join again.
func (c *committer) run(ctx context.Context) bool {
	for routine.Sleep(ctx, c.interval) {
		if !c.flush() {
			return false
		}
	}
	return true
}

// flush commits what is due and reports whether it could. Commits of an ended
// generation fail and change nothing on the broker.
func (c *committer) flush() bool {
	if c.failed {
		return false
	}
	offsets := map[string]map[int]int64{}
	taken := map[*partition]int64{}
	for _, p := range c.partitions {
		if offset, due := p.due(); due {
			if offsets[p.topic] == nil {
				offsets[p.topic] = map[int]int64{}
			}
			offsets[p.topic][p.id] = offset
			taken[p] = offset
		}
	}
	if len(taken) == 0 {
		return true
	}
	err := c.gen.CommitOffsets(offsets)
	if lost(err) {
		// Brokers close the connection on which the SASL session is over. The
		// generation itself goes on until this member joins again, which it does
		// not before the session has returned; so the same offsets may be
		// committed once more, whether or not they were before.
		if again := c.another(offsets); again != nil {
			err = fmt.Errorf("%w, and once more: %w", err, again)
		} else {
			err = nil
		}
	}
	if err != nil {
		c.failed = true
		c.done(fmt.Errorf("commit offsets of %d partitions: %w", len(taken), err))
		return false
	}
	for p, offset := range taken {
		p.commit(offset)
	}
	c.done(nil)
	return true
}
