package kafkaconsumer

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// committer is the only one that commits in its generation, with one request in flight. Commits
// therefore neither overtake each other nor move back. The one exception, beginGroup, commits
// before the committer has anything to commit.
type committer struct {
	gen        *kafka.Generation
	partitions []*partition
	interval   time.Duration
	// another commits on another connection than the generation's own.
	another func(offsets map[string]map[int]int64) error
	// done receives the result of each commit.
	done func(error)

	failed bool
}

// run commits what is due every interval until ctx ends or a commit fails. It reports whether no
// commit failed. A failed commit means that the generation is over or the coordinator is gone: the
// member has to join again.
func (c *committer) run(ctx context.Context) bool {
	for routine.Sleep(ctx, c.interval) {
		if !c.flush() {
			return false
		}
	}
	return true
}

// flush commits what is due and reports whether that succeeded. Commits of an ended generation fail
// and change nothing on the broker.
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
		// The connection is lost, for example because the broker closed it when its SASL session
		// expired. The generation is still alive: this member joins again only after the session
		// has returned. So the same offsets can be committed once more, whether or not the first
		// try reached the broker.
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
