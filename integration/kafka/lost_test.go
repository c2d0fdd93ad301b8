package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestCommitIsRetriedOnAnotherConnection covers the end of a SASL session: the broker
// closes the connection at the next request, which may be a commit.
func TestCommitIsRetriedOnAnotherConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.start()
	r.produce(20, 0, 1)
	r.awaitAll()
	r.kafka.LoseAnswers(kmsg.OffsetCommit, 1)
	r.produce(20, 0, 1)
	r.awaitAll()
	require.Equal(t, 80, r.ledger.deliveries(topic), "nothing is delivered again")
	require.NoError(t, c.Health().CommitErr)
}

func TestLostConnectionIsReportedOnlyIfTheNextIsLostToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	core, logs := observer.New(zapcore.WarnLevel)
	c, err := kafkaconsumer.New("orders.events", config(r.kafka.Brokers(), topic), r.ledger, zap.New(core), nil)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, c) })
	require.NoError(t, c.Start(t.Context()))
	r.produce(10, 0)
	r.awaitAll()
	for range 3 {
		r.kafka.LoseAnswers(kmsg.Fetch, 2)
		r.produce(10, 0)
		r.awaitAll()
	}
	require.Empty(t, logs.All())
	r.kafka.LoseAnswers(kmsg.Fetch, 5)
	r.produce(10, 0)
	r.awaitAll()
	require.Equal(t, 1, logs.FilterMessageSnippet("kafka fetch failing").Len())
}

func TestCommitLostTwiceEndsTheGenerationWithoutLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.start()
	r.produce(20, 0, 1)
	r.awaitAll()
	r.kafka.LoseAnswers(kmsg.OffsetCommit, 2)
	r.produce(20, 0, 1)
	r.awaitAll()
	eventually(t, "joined again", func() bool { return c.Health().Rebalances > 0 })
}
