package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// remembering returns an inbox that consumes the topic and has a message, "old", that is due for
// cleanup.
func remembering(
	t *testing.T, d *inboxtest.Database, k *kafkatest.Kafka, policy acceptor.BadRecordPolicy,
) (*inbox.Inbox, *fxtest.Clock) {
	t.Helper()
	cfg := config(k.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"} // the ID is in a header
	clock := fxtest.NewClock(inboxtest.Noon)
	ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.Cleanup.Retention = time.Hour
		o.Cleanup.CleanupInterval = 20 * time.Millisecond
		o.Acceptor.BadRecords = policy
	}),
		inbox.Channel("c", inbox.Kafka(cfg), inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
	known := inboxtest.Message("old")
	known.Source = "kafka:" + topic
	_, err := ib.Accept(t.Context(), known)
	require.NoError(t, err)
	inboxtest.Process(t, ib)
	clock.Advance(2 * time.Hour)
	return ib, clock
}

func record(partition int, id string) kafkatest.Record {
	r := kafkatest.Record{Partition: partition, Value: []byte("x")}
	if id != "" {
		r.Headers = []kafkatest.Header{{Key: "MessageId", Value: []byte(id)}}
	}
	return r
}

func remembers(t *testing.T, ib *inbox.Inbox, id string) bool {
	t.Helper()
	var n int64
	require.NoError(t, ib.DB().Table(ib.Tables().Messages()).Where("id = ?", id).Count(&n).Error)
	return n == 1
}

// TestCleanupWaitsForAHaltedPartition proves contract 6.5: a partition that is halted before the
// end it had when it was assigned holds cleanup back. Empty partitions and those that caught up do
// not.
func TestCleanupWaitsForAHaltedPartition(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 3))
		// partition 2 is empty
		require.NoError(t, k.Produce(topic, record(0, "good"), record(1, "before"), record(1, ""), record(1, "after")))
		ib, clock := remembering(t, d, k, acceptor.BadRecordHalt)
		require.NoError(t, ib.Start(t.Context()))
		stopped := false
		end := func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if !stopped {
				stopped = true
				require.NoError(t, ib.Stop(ctx))
			}
		}
		t.Cleanup(end)
		inboxtest.Eventually(t, func() bool {
			h := ib.Health().Consumers[0]
			return len(h.Halted()) == 1 && len(h.Partitions) == 3 && h.Partitions[0].CaughtUp && h.Partitions[2].CaughtUp
		}, "one partition is halted, the others have caught up")

		deleted, err := ib.Cleanup(t.Context())
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, err, &waiting)
		require.Equal(t, "c", waiting.Channel)
		require.Equal(t, topic, waiting.Topic)
		require.Equal(t, 1, waiting.Partition)
		require.Error(t, waiting.Err)
		require.Zero(t, deleted)
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Cleanup.Held != nil
		}, "runs in the background are held, too")
		require.False(t, ib.Health().Cleanup.Overdue)
		clock.Advance(time.Second)
		require.ErrorContains(t, ib.Health().Degraded(), "cleanup is held since")
		require.True(t, remembers(t, ib, "old"))

		end()
		deleted, err = ib.Cleanup(t.Context())
		require.NoError(t, err, "without consumers it does not wait")
		require.EqualValues(t, 1, deleted.Messages)
		require.False(t, remembers(t, ib, "old"))
	})
}

// TestCleanupWaitsForABrokerThatCannotBeReachedAndThenForTheBacklog proves contract 6.5.
func TestCleanupWaitsForABrokerThatCannotBeReachedAndThenForTheBacklog(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "old"), record(0, "new"))) // a redelivery comes first
		ib, _ := remembering(t, d, k, acceptor.BadRecordStore)
		k.Stop()
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return ib.Health().Cleanup.Held != nil }, "cleanup is held")
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, ib.Health().Cleanup.Held, &waiting)
		require.Empty(t, waiting.Topic)
		inboxtest.Eventually(t, func() bool { return ib.Health().Consumers[0].GroupErr != nil }, "the outage shows")
		require.True(t, remembers(t, ib, "old"))
		require.NoError(t, k.Restart())
		inboxtest.Eventually(t, func() bool { return !remembers(t, ib, "old") }, "cleanup goes on")
		require.True(t, remembers(t, ib, "new"))
		require.EqualValues(t, 1, ib.Counters().Duplicates, "the redelivery was recognised before")
	})
}
