package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
)

// A broker closes a connection whose SASL session is over with the next
// request on it, which may be a commit.
func TestCommitWhoseConnectionIsLostIsMadeByAnother(t *testing.T) {
	r := newRig(t, 2)
	c := r.start()
	r.produce(20, 0, 1)
	r.awaitAll()
	r.kafka.LoseAnswers(kafkatest.OffsetCommitAPI, 1)
	r.produce(20, 0, 1)
	r.awaitAll()
	require.Equal(t, 80, r.ledger.deliveries(topic), "nothing is delivered again")
	require.NoError(t, c.Health().CommitErr)
}

func TestCommitThatIsLostTwiceEndsTheGenerationAndLosesNothing(t *testing.T) {
	r := newRig(t, 2)
	c := r.start()
	r.produce(20, 0, 1)
	r.awaitAll()
	r.kafka.LoseAnswers(kafkatest.OffsetCommitAPI, 2)
	r.produce(20, 0, 1)
	r.awaitAll()
	eventually(t, "joined again", func() bool { return c.Health().Rebalances > 0 })
}
