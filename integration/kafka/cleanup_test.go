package kafka

import (
	"context"
	"errors"
	"sync/atomic"
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
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// remembering returns an inbox that consumes the topic and has a message, "old", that is due for
// cleanup.
func remembering(
	t *testing.T, d *inboxtest.Database, k *kafkatest.Kafka, policy acceptor.BadRecordPolicy,
	change ...func(*kafkaconsumer.Config),
) (*inbox.Inbox, *fxtest.Clock) {
	t.Helper()
	cfg := config(k.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"} // the ID is in a header
	for _, c := range change {
		c(&cfg)
	}
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

// replica returns one of several processes of an inbox. Its clock is the test's, and messages are kept
// for an hour. consumes is false for a worker without Kafka.
func replica(
	t *testing.T, d *inboxtest.Database, k *kafkatest.Kafka, clock *fxtest.Clock, runs *atomic.Int64, consumes bool,
) *inbox.Inbox {
	t.Helper()
	cfg := config(k.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"} // the ID is in a header
	handled := inbox.On("t", inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { runs.Add(1); return nil }))
	channel := inbox.Channel("c", handled)
	if consumes {
		channel = inbox.Channel("c", inbox.Kafka(cfg), handled)
	}
	return inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.Cleanup.Retention = time.Hour
		o.Acceptor.BadRecords = acceptor.BadRecordHalt
	}), channel)
}

// TestCleanupWaitsForUnreadRecordsOfOthers proves contract 6.5: after a downtime that exceeds
// retention no process deletes what redeliveries in the partitions of another one need. A worker
// without Kafka and a program that only cleans are such processes, too.
func TestCleanupWaitsForUnreadRecordsOfOthers(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		clock, runs := fxtest.NewClock(inboxtest.Noon), new(atomic.Int64)
		require.NoError(t, k.Produce(topic, record(0, "m0"), record(1, "m1")))
		completed := func(ib *inbox.Inbox) func() bool {
			return func() bool { return inboxtest.CountMessages(t, ib) == 2 && inboxtest.AllCompleted(t, ib) }
		}
		before := replica(t, d, k, clock, runs, true)
		end := inboxtest.Start(t, before)
		eventually(t, "both are handled and committed", func() bool {
			committed := k.Committed(group, topic)
			return completed(before)() && committed[0] == 1 && committed[1] == 1
		})
		end()

		clock.Advance(2 * time.Hour) // nothing runs for longer than retention
		require.NoError(t, k.Produce(topic, record(0, "m0"), record(1, ""), record(1, "m1")))
		a, b := replica(t, d, k, clock, runs, true), replica(t, d, k, clock, runs, true)
		inboxtest.Start(t, a)
		inboxtest.Start(t, b)
		other := replica(t, d, k, clock, runs, false) // never started
		worker := replica(t, d, k, clock, runs, false)
		inboxtest.Start(t, worker)
		eventually(t, "one has the halted partition, the other one has caught up", func() bool {
			ha, hb := a.Health().Consumers[0], b.Health().Consumers[0]
			return len(ha.Partitions) == 1 && len(hb.Partitions) == 1 && len(ha.Halted())+len(hb.Halted()) == 1 &&
				k.Committed(group, topic)[0] == 2
		})
		for _, ib := range []*inbox.Inbox{worker, other, a, b} {
			deleted, err := ib.Cleanup(t.Context())
			require.NoError(t, err)
			require.Zero(t, deleted.Messages)
		}
		operator := operator(t, d)
		at, _ := haltAt(t, operator, 1, 1)
		request(t, operator.SkipRecord, at)
		eventually(t, "all is read", func() bool { return k.Committed(group, topic)[1] == 3 })
		eventually(t, "then it is deleted", func() bool {
			for _, ib := range []*inbox.Inbox{worker, other, a, b} {
				_, err := ib.Cleanup(t.Context())
				require.NoError(t, err)
			}
			return !remembers(t, other, "m0") && !remembers(t, other, "m1")
		})
		require.EqualValues(t, 2, runs.Load(), "no message ran twice")
	})
}

// TestCleanupWaitsForAHaltedPartition proves contract 6.5: a partition that is halted before the
// end it had when it was assigned holds cleanup back. Empty partitions and those that caught up do
// not.
func TestCleanupWaitsForAHaltedPartition(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
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

		var waiting *cleanup.WaitingError
		waits := func() bool {
			_, err := ib.Cleanup(t.Context())
			// Not if a run in the background has the lease, or what partition 0 has caught up to is not stored yet.
			return errors.As(err, &waiting) && waiting.Partition != 0
		}
		inboxtest.Eventually(t, waits, "it waits")
		require.Equal(t, &cleanup.WaitingError{Channel: "c", GroupID: group, Topic: topic, Partition: 1}, waiting)
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Cleanup.Held != nil
		}, "runs in the background are held, too")
		require.False(t, ib.Health().Cleanup.Overdue)
		clock.Advance(time.Minute)
		require.ErrorContains(t, ib.Health().Degraded(), "cleanup is held since")
		require.True(t, remembers(t, ib, "old"))

		end()
		// The stop may have cut off a run that the database then gave the lease.
		inboxtest.Exec(t, d.DB, `DELETE FROM inbox_locks WHERE name = 'cleanup'`)
		_, err := ib.Cleanup(t.Context())
		require.ErrorAs(t, err, &waiting, "without its consumers, too")
		require.True(t, remembers(t, ib, "old"))
	})
}

// TestCleanupWaitsForUnreachableBrokerAndBacklog proves contract 6.5.
func TestCleanupWaitsForUnreachableBrokerAndBacklog(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "old"), record(0, "new"))) // a redelivery comes first
		ib, _ := remembering(t, d, k, acceptor.BadRecordStore)
		k.Stop()
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return ib.Health().Cleanup.Held != nil }, "cleanup is held")
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, ib.Health().Cleanup.Held, &waiting)
		require.Equal(t, -1, waiting.Partition, "its partitions are not known")
		inboxtest.Eventually(t, func() bool { return ib.Health().Consumers[0].GroupErr != nil }, "the outage shows")
		require.True(t, remembers(t, ib, "old"))
		require.NoError(t, k.Restart())
		inboxtest.Eventually(t, func() bool { return !remembers(t, ib, "old") }, "cleanup goes on")
		require.True(t, remembers(t, ib, "new"))
		require.EqualValues(t, 1, ib.Counters().Duplicates, "the redelivery was recognised before")
	})
}
