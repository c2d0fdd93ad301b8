package kafkaconsumer

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
)

type acceptNothing struct{}

func (acceptNothing) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

func (acceptNothing) AcceptRecords(context.Context, string, []envelope.Received) ([]envelope.Result, error) {
	return nil, nil
}

// Between two generations there is a moment without a session; it must not
// look like a member that has no partitions to catch up with.
func TestBetweenGenerationsAConsumerHasNotCaughtUp(t *testing.T) {
	c, err := New("c", Config{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"orders"}, GroupID: "g",
		Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.KafkaCoordinates()}}, acceptNothing{}, nil, nil)
	require.NoError(t, err)
	require.False(t, c.Health().CaughtUp(), "before the start")
	c.setState(StateJoining)
	require.False(t, c.Health().CaughtUp())
	s := newSession(c, &kafka.Generation{}, t.Context())
	c.joined(s)
	require.True(t, c.Health().CaughtUp(), "a member without partitions")
	s.end()
	c.left()
	require.False(t, c.Health().CaughtUp())
}

func TestPartitionHasCaughtUpOnceItsFirstHighWatermarkIsAccepted(t *testing.T) {
	p := newPartition(t.Context(), "orders", 0, 5)
	require.False(t, p.health().CaughtUp, "nothing is known of it")
	p.begin(5, false)
	require.False(t, p.health().CaughtUp, "nothing was fetched")
	p.fetched(8, 10, 10, 0)
	p.accept(9, time.Time{})
	require.False(t, p.health().CaughtUp)
	p.fetched(20, 20, 20, 0)
	p.accept(10, time.Time{})
	require.True(t, p.health().CaughtUp, "what came after the assignment does not count")

	empty := newPartition(t.Context(), "orders", 1, -1)
	empty.begin(0, false)
	empty.fetched(0, 0, 0, 0)
	require.True(t, empty.health().CaughtUp, "there was nothing")

	failing := newPartition(t.Context(), "orders", 2, 5)
	failing.begin(5, false)
	failing.failing(kafka.NotLeaderForPartition)
	require.False(t, failing.health().CaughtUp, "unreachable")

	halted := newPartition(t.Context(), "orders", 3, 5)
	halted.begin(5, false)
	halted.fetched(8, 10, 10, 0)
	halted.halt(kafka.Unknown)
	require.False(t, halted.health().CaughtUp)
	for _, each := range []*partition{p, empty, failing, halted} {
		each.stop()
	}
}
