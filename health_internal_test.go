package inbox

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestHaltsOfThousandsOfPartitionsAreNamedUpToABound(t *testing.T) {
	c := kafkaconsumer.Health{Channel: "orders", Partitions: make([]kafkaconsumer.PartitionHealth, 10_000)}
	for i := range c.Partitions {
		c.Partitions[i] = kafkaconsumer.PartitionHealth{Topic: "orders", Partition: i, Halted: errors.New("a bad record")}
	}
	var h Health
	h.judgeConsumer(c, nil, Options{})
	require.Len(t, h.Reasons, haltReasons+1)
	require.Contains(t, h.Reasons[0].Detail, "orders/0 is halted")
	require.Equal(t, "9980 more partitions are halted", h.Reasons[haltReasons].Detail)
}
