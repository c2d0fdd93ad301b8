package kafkawire

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/gorm-inbox/inbox/internal/brief"
)

// commitVersion is the version of requests to commit that all brokers of Kafka 0.9 to 4 have.
const commitVersion = 2

// Commit commits offsets of a group, whose coordinator the broker must be. It returns the broker's first refusal.
func (c *Conn) Commit(ctx context.Context, request *offsetcommit.Request) error {
	answer, err := c.ask(ctx, request, commitVersion, 0, largeAnswer, nil)
	if err != nil {
		return err
	}
	asked := 0
	for _, topic := range request.Topics {
		asked += len(topic.Partitions)
	}
	return readCommitted(answer, asked)
}

// readCommitted reads the answer to a commit of so many partitions.
func readCommitted(c *cursor, asked int) error {
	answered := 0
	for range c.count(2 + 4) {
		topic := string(c.take(int64(c.int16())))
		for range c.count(4 + 2) {
			id, code := c.int32(), c.int16()
			if answered++; code != 0 && !c.short {
				return fmt.Errorf("%s/%d: %w", brief.Name(topic), id, kafka.Error(code))
			}
		}
	}
	if c.short || answered != asked {
		return fmt.Errorf("the answer is about %d of %d partitions: %w", answered, asked, kafka.Unknown)
	}
	return nil
}
