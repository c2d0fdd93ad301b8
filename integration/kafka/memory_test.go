package kafka

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// liveHeap is what is in use after a collection.
func liveHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// While the database is away, a backlog of some hundred megabytes that lies
// compressed in a few responses must not be decompressed into memory
// (contract 7.2). Everything is accepted when the database is back.
func TestMemoryIsBoundedWhileNothingIsAccepted(t *testing.T) {
	const (
		partitions, each, size = 32, 12, 1 << 20 // 384 MiB
		buffer, batch, fetched = 8 << 20, 2 << 20, 1 << 20
		inflated               = 6 << 20 // the largest batch, with what is taken at a time
		// As BufferBytes promises: one partition exceeds it by a response, a
		// batch and three accepts; each may have 64 KiB that it has not used.
		bound = buffer + fetched + inflated + 3*(batch+size) + partitions*64<<10
	)
	k := kafkatest.Start(t, kafkatest.Topic(topic, partitions))
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.ProducerBatchMaxBytes(5<<20), kgo.ProducerLinger(20*time.Millisecond), kgo.MaxBufferedBytes(64<<20))...)
	require.NoError(t, err)
	defer client.Close()
	for range each / 4 {
		var records []*kgo.Record
		for p := range int32(partitions) {
			for range 4 {
				records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: make([]byte, size)})
			}
		}
		require.NoError(t, client.ProduceSync(t.Context(), records...).FirstErr())
	}
	var heap, buffered atomic.Int64
	accepted := &forgetting{}
	accepted.away.Store(true)
	cfg := config(k.Brokers(), topic)
	before := liveHeap()
	c := consumer(t, cfg, accepted, func(c *kafkaconsumer.Config) {
		c.BufferBytes, c.BatchBytes, c.FetchMaxBytes, c.MaxBatchBytes = buffer, batch, fetched, inflated
	})
	require.NoError(t, c.Start(t.Context()))
	measure := func() {
		heap.Store(max(heap.Load(), int64(liveHeap()-before)))
		buffered.Store(max(buffered.Load(), int64(c.Health().BufferedBytes)))
	}
	eventually(t, "accepting fails with the buffer full", func() bool {
		measure()
		return c.Health().AcceptErr != nil && c.Health().BufferedBytes >= buffer*3/4
	})
	require.Never(t, func() bool {
		measure()
		return buffered.Load() > bound || heap.Load() > bound+16<<20
	}, time.Second, 20*time.Millisecond)
	accepted.away.Store(false)
	eventually(t, "all are accepted", func() bool {
		measure()
		return accepted.records.Load() == partitions*each
	})
	t.Logf("of %d MiB at most %d MiB were buffered, bound %d; the heap grew by %d MiB", partitions*each*size>>20, buffered.Load()>>20, bound>>20, heap.Load()>>20)
	require.LessOrEqual(t, buffered.Load(), int64(bound))
	require.LessOrEqual(t, heap.Load(), int64(bound+16<<20), "with what the codecs and the client keep")
	eventually(t, "all is given back", func() bool { return c.Health().BufferedBytes == 0 })
}

// forgetting counts records and keeps none: a ledger would be the memory.
type forgetting struct {
	haltAtGaps
	away    atomic.Bool
	records atomic.Int64
}

func (f *forgetting) AcceptRecords(_ context.Context, _ string, received []envelope.Received) ([]envelope.Result, error) {
	if f.away.Load() {
		return nil, errors.New("the database is away")
	}
	f.records.Add(int64(len(received)))
	return make([]envelope.Result, len(received)), nil
}
