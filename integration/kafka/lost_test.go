package kafka

import (
	"sync"
	"testing"
	"time"

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

func TestCommitLostTwiceStaysDue(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.start()
	r.produce(20, 0, 1)
	r.awaitAll()
	r.kafka.LoseAnswers(kmsg.OffsetCommit, 6)
	r.produce(20, 0, 1)
	r.awaitAll()
	eventually(t, "the failure is over", func() bool { return c.Health().CommitErr == nil })
	require.Zero(t, c.Health().Rebalances)
	require.Equal(t, 80, r.ledger.deliveries(topic), "nothing is delivered again")
}

// TestLastCommitLostTwiceIsReported proves contract 7.1: what was accepted since the last commit is delivered again.
func TestLastCommitLostTwiceIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.start(func(c *kafkaconsumer.Config) { c.CommitInterval = time.Minute })
	r.produce(20, 0)
	eventually(t, "accepted", func() bool { return r.ledger.accepted(topic) == 20 })
	r.kafka.LoseAnswers(kmsg.OffsetCommit, 2)
	stop(t, c)
	require.ErrorContains(t, c.Health().CommitErr, "and once more")
	r.start()
	r.awaitAll()
	require.Equal(t, 40, r.ledger.deliveries(topic))
}

// TestRefusedCommitPausesBeforeJoiningAgain covers a right that a member has to join but not to commit.
func TestRefusedCommitPausesBeforeJoiningAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	const topicAuthorizationFailed = 29
	fault := r.kafka.FailNext(kmsg.OffsetCommit, topicAuthorizationFailed, 3)
	var mu sync.Mutex
	var joins []time.Time
	r.kafka.Observe(kmsg.JoinGroup, func() {
		mu.Lock()
		defer mu.Unlock()
		joins = append(joins, time.Now())
	})
	r.produce(5, 0)
	c := r.start(func(c *kafkaconsumer.Config) { c.HeartbeatInterval = 2 * time.Second }) // the pause is a second at most
	eventually(t, "a right is missing", func() bool { return fault.Hits() > 0 && c.Health().CommitErr != nil })
	require.ErrorContains(t, c.Health().CommitErr, "needs the right READ")
	r.awaitAll()
	require.Equal(t, 3, fault.Hits())
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, joins[len(joins)-1].Sub(joins[0]), 3*time.Second)
}

// TestCommitWithoutMetadataFollowsARefusal covers brokers with a low offset.metadata.max.bytes.
func TestCommitWithoutMetadataFollowsARefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	const metadataTooLarge = 12
	r.kafka.FailNext(kmsg.OffsetCommit, metadataTooLarge, 1)
	c := r.start()
	for range 2 {
		r.produce(20, 0)
		r.awaitAll()
	}
	require.Empty(t, r.kafka.Cluster().GroupInfo(group).Commits[topic][0].Metadata)
	require.Zero(t, c.Health().Rebalances)
}
