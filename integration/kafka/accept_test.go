package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestEveryRecordIsAcceptedInOrderAndCommitted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.produce(500, 0, 1, 2)
	c := r.start()
	r.produce(500, 2, 1)
	r.awaitAll()
	calls, largest := r.ledger.stats()
	require.Less(t, calls, 500, "many records share an accept")
	require.LessOrEqual(t, largest, 1000)
	eventually(t, "no lag", func() bool {
		h := c.Health()
		for _, p := range h.Partitions {
			if p.Lag != 0 || !p.CaughtUp || p.Committed != p.Accepted || p.Err != nil || p.Halted != nil {
				return false
			}
		}
		return len(h.Partitions) == 3 && h.CaughtUp() && h.Err() == nil && h.State == kafkaconsumer.StateRunning &&
			h.BufferedBytes == 0
	})
	h := c.Health()
	require.NotEmpty(t, h.MemberID)
	require.Zero(t, h.Rebalances)
	require.Zero(t, h.DownSince)
	require.Equal(t, 2500, r.ledger.deliveries(topic), "nothing was delivered twice")
}

func TestBatchesHoldSeveralPartitionsWithinTheirLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.produce(100, 0, 1, 2, 3)
	several := atomic.Bool{}
	r.ledger.before = func(_ context.Context, received []envelope.Received) error {
		seen := map[int]bool{}
		for _, rec := range received {
			seen[rec.Record.Partition] = true
		}
		if len(seen) > 1 {
			several.Store(true)
		}
		return nil
	}
	r.start(func(c *kafkaconsumer.Config) {
		c.BatchRecords, c.AcceptConcurrency, c.Linger = 250, 1, 100*time.Millisecond
	})
	r.awaitAll()
	_, largest := r.ledger.stats()
	require.LessOrEqual(t, largest, 250)
	require.True(t, several.Load())
}

func TestFailedAcceptIsRetriedWithTheSameRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(50, 0)
	var first []int64
	fails := 0
	r.ledger.before = func(_ context.Context, received []envelope.Received) error {
		if fails >= 4 {
			return nil
		}
		fails++
		var offsets []int64
		for _, rec := range received {
			offsets = append(offsets, rec.Record.Offset)
		}
		if first == nil {
			first = offsets
		}
		require.Equal(t, first, offsets)
		return errors.New("database is down")
	}
	c := r.start(func(c *kafkaconsumer.Config) { c.BatchRecords = 20 })
	eventually(t, "shown as failing", func() bool {
		h := c.Health()
		return h.AcceptErr != nil && !h.AcceptFailingSince.IsZero() && h.Err() != nil && h.State == kafkaconsumer.StateRunning
	})
	r.awaitAll()
	require.NoError(t, c.Health().AcceptErr)
	require.Equal(t, 4, fails)
}

func TestRedeliveryAfterCrashBetweenAcceptAndCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(100, 0, 1)
	fault := r.kafka.FailNext(kmsg.OffsetCommit, -1, -1) // no commit arrives
	c := r.start()
	eventually(t, "all accepted", func() bool { return r.ledger.accepted(topic) == 200 })
	stop(t, c)
	require.Empty(t, r.kafka.Committed(group, topic))
	fault.Remove()
	r.start()
	r.awaitAll()
	require.GreaterOrEqual(t, r.ledger.deliveries(topic), 400)
}

func TestLostAcceptResponseCausesRedelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	lost := atomic.Int32{}
	r.ledger.after = func(context.Context, []envelope.Received) error {
		if lost.Add(1) <= 3 {
			return errors.New("connection lost after commit")
		}
		return nil
	}
	r.start()
	r.produce(30, 0)
	r.awaitAll()
	require.Greater(t, r.ledger.deliveries(topic), 30)
}

func TestPanickingOrMiscountingAcceptorIsRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(10, 0)
	n := atomic.Int32{}
	r.ledger.before = func(context.Context, []envelope.Received) error {
		if n.Add(1) <= 2 {
			panic("boom")
		}
		return nil
	}
	r.start()
	r.awaitAll()
}

func TestHaltStopsOnlyItsPartitionBeforeTheRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(100, 0, 1)
	r.ledger.halt = func(rec envelope.Record) bool { return rec.Partition == 0 && rec.Offset == 40 }
	halts := make(chan error, 10)
	c := r.start(func(c *kafkaconsumer.Config) {
		c.AcceptConcurrency = 1
		c.OnHalt = func(where string, partition int, reason error) {
			if where == topic && partition == 0 {
				halts <- reason
			}
		}
	})
	require.ErrorContains(t, receive(t, halts), "bad record at 40")
	r.produce(100, 0, 1)
	eventually(t, "the other partition goes on", func() bool { return r.committed(1) == 200 && r.committed(0) == 40 })
	h := c.Health()
	require.Len(t, h.Halted(), 1)
	require.Equal(t, int64(40), h.Halted()[0].Accepted)
	require.ErrorContains(t, h.Err(), "orders/0 is halted before offset 40")
	require.Empty(t, halts, "reported once")
	stop(t, c)
	r.ledger.halt = nil // fixed
	r.start()
	r.awaitAll()
}

func TestBackPressureBoundsFetching(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	for p := range 4 {
		for range 30 { // in record batches smaller than one fetch may return
			records := make([]kafkatest.Record, 10)
			for i := range records {
				body := make([]byte, 10_000)
				_, _ = rand.Read(body) // incompressible; never fails
				records[i] = kafkatest.Record{Partition: p, Value: body}
			}
			require.NoError(t, r.kafka.Produce(topic, records...))
			r.next[place{topic, p}] += len(records)
		}
	}
	release := make(chan struct{})
	r.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	const perPartition, buffer = 200_000, 400_000
	c := r.start(func(c *kafkaconsumer.Config) {
		c.FetchMaxBytes, c.BufferBytes, c.AcceptConcurrency = perPartition, buffer, 1
	})
	fetches := atomic.Int32{}
	eventually(t, "buffer is used up", func() bool { return c.Health().BufferedBytes >= buffer })
	r.kafka.Observe(kmsg.Fetch, func() { fetches.Add(1) })
	// Nothing more is fetched, but the member stays: rebalances would show.
	require.Never(t, func() bool {
		h := c.Health()
		if h.BufferedBytes > buffer+4*perPartition || h.Rebalances > 0 {
			t.Logf("%d bytes, %d rebalances", h.BufferedBytes, h.Rebalances)
			return true
		}
		return false
	}, 700*time.Millisecond, 10*time.Millisecond)
	require.LessOrEqual(t, fetches.Load(), int32(4))
	close(release)
	r.awaitAll()
}

func TestLastCommitsItsStartOffsetImmediately(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(5, 0)
	r.ledger.next[place{topic, 0}] = 5 // starts after these records
	last := func(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.Last }
	c := r.start(last)
	eventually(t, "the start is committed", func() bool { return r.committed(0) == 5 })
	stop(t, c)
	r.produce(3, 0) // while no consumer runs
	r.start(last)
	eventually(t, "none lost", func() bool { return r.committed(0) == 8 })
	require.Equal(t, 3, r.ledger.accepted(topic))
}

func TestLastSkipsNothingWhileCommittedOffsetIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(5, 0)
	c := r.start()
	r.awaitAll()
	stop(t, c)
	r.produce(3, 0)
	fault := r.kafka.FailNext(kmsg.OffsetFetch, coordinatorLoading, 2)
	r.start(func(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.Last })
	r.awaitAll()
	require.Equal(t, 2, fault.Hits())
}

func TestRecordsArriveExactly(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	require.NoError(t, r.kafka.Produce(topic,
		kafkatest.Record{Key: nil, Value: []byte{}, Headers: []kafkatest.Header{{Key: "a", Value: nil},
			{Key: "a", Value: []byte{}}, {Key: "", Value: []byte{0xff}}}},
		kafkatest.Record{Key: []byte{}, Value: nil},
	))
	r.start()
	eventually(t, "both there", func() bool { return r.committed(0) == 2 })
	records := r.ledger.of(topic, 0)
	require.Nil(t, records[0].Key)
	require.NotNil(t, records[0].Value)
	require.Len(t, records[0].Headers, 3)
	require.Nil(t, records[0].Headers[0].Value)
	require.NotNil(t, records[0].Headers[1].Value)
	require.Equal(t, []byte{0xff}, records[0].Headers[2].Value)
	require.NotNil(t, records[1].Key)
	require.Nil(t, records[1].Value)
	require.Nil(t, records[1].Headers)
}

func TestMalformedRecordsReachTheAcceptorAsBad(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	bad := atomic.Int32{}
	r.ledger.before = func(_ context.Context, received []envelope.Received) error {
		for _, rec := range received {
			if rec.Err != nil {
				require.Empty(t, rec.Messages)
				bad.Add(1)
			}
		}
		return nil
	}
	require.NoError(t, r.kafka.Produce(topic,
		kafkatest.Record{Value: []byte("plain")},
		kafkatest.Record{Value: []byte("{"), Headers: []kafkatest.Header{{Key: "content-type",
			Value: []byte("application/cloudevents+json")}}},
		kafkatest.Record{Value: []byte("plain")},
	))
	r.start()
	eventually(t, "passed", func() bool { return r.committed(0) == 3 })
	require.Equal(t, int32(1), bad.Load())
}
