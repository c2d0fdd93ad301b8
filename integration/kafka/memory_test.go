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

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// liveHeap returns the live heap after two collections, because pools release their objects only at
// the second.
func liveHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A backlog that is compressed into a few responses.
const (
	backlogPartitions, backlogRecord       = 32, 1 << 20
	backlogBuffer, backlogBatch, backlogIn = 8 << 20, 2 << 20, 1 << 20
	backlogInflated                        = 6 << 20 // the largest batch, with what is read at a time
	// The limit that BufferBytes promises: one partition exceeds it by a response, a batch and four
	// accepts. Each partition may have 64 KiB of unused buffer.
	backlogBound = backlogBuffer + backlogIn + backlogInflated + 4*(backlogBatch+backlogRecord) + backlogPartitions*64<<10
)

func produceBacklog(t *testing.T, k *kafkatest.Kafka, each int) {
	t.Helper()
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.ProducerBatchMaxBytes(5<<20), kgo.ProducerLinger(20*time.Millisecond), kgo.MaxBufferedBytes(64<<20))...)
	require.NoError(t, err)
	defer client.Close()
	for range each / 4 {
		var records []*kgo.Record
		for p := range int32(backlogPartitions) {
			for range 4 {
				records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: make([]byte, backlogRecord)})
			}
		}
		require.NoError(t, client.ProduceSync(t.Context(), records...).FirstErr())
	}
}

func tightly(c *kafkaconsumer.Config) {
	c.BufferBytes, c.BatchBytes, c.FetchMaxBytes, c.MaxBatchBytes = backlogBuffer, backlogBatch, backlogIn, backlogInflated
}

// measured has the largest observed values of the live heap and of buffered bytes.
type measured struct{ before, heap, buffered int }

func (m *measured) look(health kafkaconsumer.Health) {
	m.heap, m.buffered = max(m.heap, liveHeap()-m.before), max(m.buffered, health.BufferedBytes)
}

func (m *measured) require(t *testing.T, slack int) {
	t.Helper()
	t.Logf("at most %d MiB were buffered, bound %d; the heap grew by %d MiB", m.buffered>>20, backlogBound>>20, m.heap>>20)
	require.LessOrEqual(t, m.buffered, backlogBound)
	require.LessOrEqual(t, m.heap, backlogBound+slack, "with what the codecs and the client keep")
}

// TestMemoryIsBoundedWhileNothingIsAccepted proves contract 7.2: while the database is down, a
// backlog of some hundred megabytes is not decompressed into memory. Everything is accepted when
// the database is back.
func TestMemoryIsBoundedWhileNothingIsAccepted(t *testing.T) {
	const each = 4 // 128 MiB
	k := kafkatest.Start(t, kafkatest.Topic(topic, backlogPartitions))
	produceBacklog(t, k, each)
	accepted := &forgetting{}
	accepted.away.Store(true)
	m := &measured{before: liveHeap()}
	c := consumer(t, config(k.Brokers(), topic), accepted, tightly)
	require.NoError(t, c.Start(t.Context()))
	awaitFull(t, m, c.Health)
	accepted.away.Store(false)
	keepLooking(t, "all are accepted", func() bool {
		m.look(c.Health())
		return accepted.records.Load() == backlogPartitions*each
	})
	m.require(t, 16<<20)
	eventually(t, "all is given back", func() bool { return c.Health().BufferedBytes == 0 })
}

// TestMemoryIsBoundedWhileTheDatabaseIsStopped is the same test with an inbox whose PostgreSQL does
// not answer.
func TestMemoryIsBoundedWhileTheDatabaseIsStopped(t *testing.T) {
	const each = 4 // 128 MiB
	k := kafkatest.Start(t, kafkatest.Topic(topic, backlogPartitions))
	proxy := pgproxy.New(t, testenv.PostgresDSN(t))
	cfg := config(k.Brokers(), topic)
	tightly(&cfg)
	// enough for megabytes on a busy machine
	ib := inboxtest.New(t, testenv.OpenPostgres(t, proxy.DSN()), inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = 3 * time.Second
	}),
		inbox.Channel("c", inbox.Kafka(cfg), inbox.On(cfg.Decoder.Type, inboxtest.Do("h", inboxtest.Nothing))))
	require.NoError(t, ib.Migrate(t.Context()))
	inboxtest.Start(t, ib)
	proxy.Partition()
	m := &measured{before: liveHeap()}
	produceBacklog(t, k, each)
	health := func() kafkaconsumer.Health { return ib.Health().Consumers[0] }
	awaitFull(t, m, health)
	m.require(t, 32<<20)
	proxy.Heal()
	keepLooking(t, "all are accepted", func() bool { return inboxtest.CountMessages(t, ib) == backlogPartitions*each })
}

// awaitFull measures until the buffer is full and accepting fails, and for some time after.
func awaitFull(t *testing.T, m *measured, health func() kafkaconsumer.Health) {
	t.Helper()
	keepLooking(t, "accepting fails with the buffer full", func() bool {
		m.look(health())
		return health().AcceptErr != nil && health().BufferedBytes >= backlogBuffer*3/4
	})
	for range 40 {
		m.look(health())
		await := time.NewTimer(20 * time.Millisecond)
		<-await.C
	}
}

// keepLooking is like eventually, but runs in this goroutine, so that it does not disturb the
// measurement.
func keepLooking(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		require.True(t, time.Now().Before(deadline), what)
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
}

// forgetting counts records without storing them, because a ledger would use the memory that is
// measured.
type forgetting struct {
	haltAtGaps
	away    atomic.Bool
	records atomic.Int64
}

func (f *forgetting) AcceptRecords(
	_ context.Context, _ string, received []envelope.Received,
) ([]envelope.Result, error) {
	if f.away.Load() {
		return nil, errors.New("the database is away")
	}
	f.records.Add(int64(len(received)))
	return make([]envelope.Result, len(received)), nil
}
