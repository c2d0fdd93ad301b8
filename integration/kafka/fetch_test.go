package kafka

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// panicking is a codec whose decompression panics.
type panicking struct{ compress.Codec }

func (panicking) NewReader(io.Reader) io.ReadCloser { panic("a bug of the codec") }

// TestDecoderPanicHaltsOnlyItsPartition proves contract 7.1 and 7.4: a panic in the
// decoding of records halts the partition, while the process and its other partitions continue.
// Codecs are global variables of kafka-go, so this test does not run in parallel with others.
func TestDecoderPanicHaltsOnlyItsPartition(t *testing.T) {
	lz4 := compress.Codecs[compress.Lz4]
	compress.Codecs[compress.Lz4] = panicking{lz4}
	t.Cleanup(func() { compress.Codecs[compress.Lz4] = lz4 }) // runs after the consumers are stopped
	r := newRig(t, 2)
	r.produce(5, 0, 1)
	client, err := kgo.NewClient(append(r.kafka.ClientOptions(), kgo.ProducerBatchCompression(kgo.Lz4Compression()))...)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: make([]byte, 1000)}).FirstErr())
	halted := make(chan error, 5)
	c := r.start(func(c *kafkaconsumer.Config) { c.OnHalt = func(_ string, _ int, reason error) { halted <- reason } })
	reason := receive(t, halted)
	require.ErrorIs(t, reason, kafkaconsumer.ErrUnreadable)
	require.ErrorContains(t, reason, "a bug of the codec")
	r.produce(10, 1)
	eventually(t, "what is before it and the other partition are committed", func() bool {
		return r.committed(0) == 5 && r.committed(1) == 15
	})
	require.Len(t, c.Health().Halted(), 1)
	stop(t, c)
}

func TestUnknownCodecHaltsBeforeTheBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.serve([]craftedBatch{{base: 0, last: 0, offsets: []int64{0}}, {base: 1, last: 1, offsets: []int64{1}, codec: 6}})
	halted := make(chan error, 5)
	r.start(func(c *kafkaconsumer.Config) { c.OnHalt = func(_ string, _ int, reason error) { halted <- reason } })
	reason := receive(t, halted)
	require.ErrorIs(t, reason, kafkaconsumer.ErrUnreadable)
	require.ErrorContains(t, reason, "unknown codec 6")
	eventually(t, "committed up to it", func() bool { return r.committed(0) == 1 })
}

// cutting breaks connections in the middle of large responses, a limited number of times.
type cutting struct {
	net.Conn
	cuts *atomic.Int32
}

func (c cutting) Write(b []byte) (int, error) {
	if len(b) > 1000 && c.cuts.Add(-1) >= 0 {
		n, _ := c.Conn.Write(b[:len(b)/2])
		_ = c.Conn.Close()
		return n, net.ErrClosed
	}
	return c.Conn.Write(b)
}

type cuttingListener struct {
	net.Listener
	cuts *atomic.Int32
}

func (l cuttingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return cutting{conn, l.cuts}, nil
}

// cluster returns a fake of several brokers, with a topic of one partition and n records.
func cluster(t *testing.T, n int, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	k, err := kfake.NewCluster(append([]kfake.Opt{kfake.SeedTopics(1, topic), kfake.GroupMinSessionTimeout(1)},
		opts...)...)
	require.NoError(t, err)
	t.Cleanup(k.Close)
	produceN(t, k, 0, n)
	return k
}

func produceN(t *testing.T, k *kfake.Cluster, from, to int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	for i := from; i < to; i++ {
		require.NoError(t, client.ProduceSync(t.Context(),
			&kgo.Record{Topic: topic, Value: fmt.Appendf(make([]byte, 500), "%d", i)}).FirstErr())
	}
}

func TestConnectionCutInAResponseLosesNothing(t *testing.T) {
	t.Parallel()
	cuts := &atomic.Int32{}
	k := cluster(t, 100, kfake.NumBrokers(1), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return cuttingListener{l, cuts}, err
	}))
	cuts.Store(4) // more often than data errors are retried
	l := newLedger()
	c := consumer(t, config(k.ListenAddrs(), topic), l)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "all are accepted", func() bool { return l.accepted(topic) == 100 })
	require.Negative(t, cuts.Load())
	require.Empty(t, c.Health().Halted())
	l.check(t)
	stop(t, c)
}

func TestMovedLeaderIsFollowed(t *testing.T) {
	t.Parallel()
	k := cluster(t, 10, kfake.NumBrokers(3))
	l := newLedger()
	c := consumer(t, config(k.ListenAddrs(), topic), l)
	require.NoError(t, c.Start(t.Context()))
	for round := range 3 {
		eventually(t, "all are accepted", func() bool { return l.accepted(topic) == 10*(round+1) })
		require.NoError(t, k.MoveTopicPartition(topic, 0, int32(round+1)%3))
		produceN(t, k, 10*(round+1), 10*(round+2))
		eventually(t, "the new leader is found", func() bool { return l.accepted(topic) == 10*(round+2) })
	}
	l.check(t)
	require.Empty(t, c.Health().Halted())
	stop(t, c)
}

// TestTimestampsHaveTheTopicsKind checks both kinds: the producer's timestamp, and the
// broker's if the topic is configured so.
func TestTimestampsHaveTheTopicsKind(t *testing.T) {
	t.Parallel()
	for kind, ofBroker := range map[string]bool{"CreateTime": false, "LogAppendTime": true} {
		t.Run(kind, func(t *testing.T) {
			b := realBench(t).watch()
			b.createTopic(1, map[string]string{"message.timestamp.type": kind})
			began := time.Now()
			produced := began.Add(-time.Hour).Truncate(time.Millisecond)
			b.produce(b.client, &kgo.Record{Timestamp: produced}, &kgo.Record{Timestamp: produced.Add(time.Second)})
			b.start()
			b.awaitEnd()
			records := b.ledger.of(b.topic, 0)
			require.Len(t, records, 2)
			if ofBroker {
				require.WithinRange(t, records[0].Timestamp, began.Add(-time.Minute), time.Now().Add(time.Minute))
				require.WithinRange(t, records[1].Timestamp, began.Add(-time.Minute), time.Now().Add(time.Minute))
				return
			}
			require.True(t, records[0].Timestamp.Equal(produced))
			require.True(t, records[1].Timestamp.Equal(produced.Add(time.Second)))
		})
	}
}

// TestTopicThatCannotBeDecodedYetHoldsUpNoOther proves contract 4.5, 7.2: while one topic waits for a service that its
// decoder needs, another is consumed to its end, however little memory there is.
func TestTopicThatCannotBeDecodedYetHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const known = "known"
	r := newRig(t, 4, kafkatest.Topic(known, 1))
	r.produce(3, 0, 1, 2, 3)
	var asked, available atomic.Bool
	r.start(func(c *kafkaconsumer.Config) {
		c.Topics, c.BufferBytes = []string{topic, known}, 1
		c.Decoder = envelope.DecoderConfig{ID: envelope.KafkaCoordinates(), TypeOf: func(r envelope.Record) (string, error) {
			if r.Topic == topic && !available.Load() {
				asked.Store(true)
				return "", fmt.Errorf("registry: %w", envelope.ErrUnavailable)
			}
			return "order.placed", nil
		}}
	})
	eventually(t, "a record waits", asked.Load)
	for range 3 {
		r.produceTo(known, 5, 0)
		r.awaitTopic(known)
	}
	require.Zero(t, r.ledger.accepted(topic))
	available.Store(true)
	r.awaitAll()
}
