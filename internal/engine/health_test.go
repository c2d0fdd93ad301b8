package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestHealthListsABoundedNumberOfHaltedPartitions(t *testing.T) {
	c := kafkaconsumer.Health{Channel: "orders", Partitions: make([]kafkaconsumer.PartitionHealth, 10_000)}
	for i := range c.Partitions {
		c.Partitions[i] = kafkaconsumer.PartitionHealth{Topic: "orders", Partition: i, Halted: errors.New("a bad record")}
	}
	facts := channelFacts(c)
	require.Len(t, facts.Halted, health.MaxHalts)
	require.ErrorContains(t, facts.Halted[0], "orders/0 is halted")
	require.Equal(t, 10_000, facts.Halts)
	require.NoError(t, facts.Err, "nothing else is wrong")
}

// TestHaltedPartitionsAreStoredFirst proves contract 11.1: however many partitions a process has, its row has a bounded
// number of them.
func TestHaltedPartitionsAreStoredFirst(t *testing.T) {
	all := []kafkaconsumer.Health{{Channel: "orders", Partitions: make([]kafkaconsumer.PartitionHealth, 10_000)},
		{Channel: "payments", Partitions: make([]kafkaconsumer.PartitionHealth, 3)}}
	for i := range all[0].Partitions {
		all[0].Partitions[i] = kafkaconsumer.PartitionHealth{Topic: "orders", Partition: i, Lag: int64(i)}
	}
	all[1].Partitions[2] = kafkaconsumer.PartitionHealth{Topic: "payments", Partition: 2, Accepted: 7,
		Halted: errors.New("bad " + strings.Repeat("x", 1000)), Decisions: []string{"resume", "skip"}}
	all[1].Partitions[1].Err = errors.New("fetching fails")
	counters := telemetry.NewCounters([]string{"orders", "payments"}, nil)
	counters.OfChannel(telemetry.Unrouted, "payments", 2)
	stored := (&Engine{counters: counters}).storedConsumers(all, nil)
	require.Equal(t, []int64{0, 2}, []int64{stored[0].Unrouted, stored[1].Unrouted})
	require.Len(t, stored[1].Partitions, 2, "more than a lag")
	halted := stored[1].Partitions[0]
	require.Equal(t, []any{"payments", int32(2), int64(7), true, true, false},
		[]any{halted.Topic, halted.Partition, halted.Position, halted.Halted, halted.Skippable, halted.AfterGap})
	require.Len(t, []rune(halted.Problem), maxStoredDetail+1)
	require.Len(t, stored[0].Partitions, maxStoredPartitions-2)
	require.EqualValues(t, 9999, stored[0].Partitions[0].Lag)
	require.Equal(t, []int{10_000 - maxStoredPartitions + 2, 1}, []int{stored[0].Unlisted, stored[1].Unlisted})
	require.Empty(t, stored[0].Problem)
	require.Less(t, len(jsonOf(stored)), 64<<10)
}
