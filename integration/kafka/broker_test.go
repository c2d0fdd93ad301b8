package kafka

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// bench is a broker with names of its own, and franz-go as the reference client.
type bench struct {
	t            *testing.T
	brokers      []string
	topic, group string
	client       *kgo.Client
	admin        *kadm.Client
	ledger       *ledger
}

// onEachBroker runs a test on the in-process Kafka, and on the real broker that INBOX_TEST_KAFKA
// names.
func onEachBroker(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Run("in-process", func(t *testing.T) { test(t, newBench(t, kafkatest.Start(t).Brokers()).watch()) })
	t.Run("real", func(t *testing.T) { test(t, realBench(t).watch()) })
}

// realBench returns a bench on the real broker, for tests of what only a real broker does.
func realBench(t *testing.T) *bench {
	t.Helper()
	address := os.Getenv(servers.KafkaEnv)
	if address == "" {
		testenv.LeaveOut(t, "Kafka on a real broker", servers.KafkaEnv)
	}
	return newBench(t, []string{address})
}

func newBench(t *testing.T, brokers []string) *bench {
	t.Helper()
	name := make([]byte, 6)
	_, _ = rand.Read(name) // never fails
	b := &bench{t: t, brokers: brokers, topic: "inbox-test-" + hex.EncodeToString(name), ledger: newLedger()}
	b.group = b.topic + "-group"
	b.client = b.newClient()
	b.admin = kadm.NewClient(b.client)
	b.ledger.sparse = true
	t.Cleanup(func() {
		_, _ = b.admin.DeleteTopics(context.Background(), b.topic) // best effort: the name is not reused
		_, _ = b.admin.DeleteGroups(context.Background(), b.group)
	})
	return b
}

// watch checks the group's commits against the ledger until the test ends.
func (b *bench) watch() *bench {
	group := b.group
	b.ledger.watchCommits(b.t, b.topic, func() (map[int]int64, error) { return b.committed(group) })
	return b
}

func (b *bench) newClient(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50 * time.Millisecond),
		// A topic that was just created may not be known to its broker yet.
		kgo.UnknownTopicRetries(-1),
	}, opts...)...)
	require.NoError(b.t, err)
	b.t.Cleanup(client.Close)
	return client
}

func (b *bench) committed(group string) (map[int]int64, error) {
	response, err := b.admin.FetchOffsets(context.Background(), group)
	if err != nil {
		return nil, err
	}
	offsets := map[int]int64{}
	for partition, o := range response[b.topic] {
		if o.Err != nil {
			return nil, o.Err
		}
		offsets[int(partition)] = o.At
	}
	return offsets, nil
}

func (b *bench) createTopic(partitions int32, configs map[string]string) {
	b.t.Helper()
	values := map[string]*string{}
	for name, value := range configs {
		values[name] = kadm.StringPtr(value)
	}
	_, err := b.admin.CreateTopic(b.t.Context(), partitions, 1, values, b.topic)
	require.NoError(b.t, err)
}

func (b *bench) produce(client *kgo.Client, records ...*kgo.Record) {
	b.t.Helper()
	for _, r := range records {
		r.Topic = b.topic
	}
	require.NoError(b.t, client.ProduceSync(b.t.Context(), records...).FirstErr())
}

// config returns a configuration with timeouts that a real broker allows.
func (b *bench) config() kafkaconsumer.Config {
	cfg := config(b.brokers, b.topic)
	cfg.GroupID, cfg.HeartbeatInterval = b.group, 200*time.Millisecond
	return cfg
}

func (b *bench) start(change ...func(*kafkaconsumer.Config)) *kafkaconsumer.Consumer {
	b.t.Helper()
	c := consumer(b.t, b.config(), b.ledger, change...)
	require.NoError(b.t, c.Start(b.t.Context()))
	return c
}

// awaitEnd waits until everything up to the high watermarks is committed. Transaction markers move
// the watermarks after a transaction has ended.
func (b *bench) awaitEnd() {
	b.t.Helper()
	eventually(b.t, "all committed", func() bool {
		ends, err := b.admin.ListEndOffsets(b.t.Context(), b.topic)
		if err != nil || ends.Error() != nil {
			return false
		}
		committed, err := b.committed(b.group)
		if err != nil {
			return false
		}
		done := true
		ends.Each(func(o kadm.ListedOffset) { done = done && (o.Offset == 0 || committed[int(o.Partition)] == o.Offset) })
		return done
	})
}

// reference reads a partition with franz-go from the first offset to the end.
func (b *bench) reference(partition int32) map[int64]string {
	b.t.Helper()
	client := b.newClient(kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.topic: {partition: kgo.NewOffset().AtStart()}}),
		kgo.KeepControlRecords())
	defer client.Close()
	ends, err := b.admin.ListEndOffsets(b.t.Context(), b.topic)
	require.NoError(b.t, err)
	end, _ := ends.Lookup(b.topic, partition)
	found := map[int64]string{}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	last := int64(-1)
	for last < end.Offset-1 {
		poll, stopPolling := context.WithTimeout(ctx, 2*time.Second)
		fetches := client.PollFetches(poll)
		stopPolling()
		require.NoError(b.t, ctx.Err())
		if fetches.NumRecords() == 0 {
			break // only hidden records are left
		}
		fetches.EachRecord(func(r *kgo.Record) {
			last = r.Offset
			if !r.Attrs.IsControl() {
				found[r.Offset] = string(r.Key) + "=" + string(r.Value)
			}
		})
	}
	return found
}

func (b *bench) found(partition int) map[int64]string {
	found := map[int64]string{}
	for _, r := range b.ledger.of(b.topic, partition) {
		found[r.Offset] = string(r.Key) + "=" + string(r.Value)
	}
	return found
}

func TestAllCompressionsAreRead(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		n := 0
		for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(),
			kgo.Lz4Compression(), kgo.ZstdCompression()} {
			client := b.newClient(kgo.ProducerBatchCompression(codec))
			var records []*kgo.Record
			for range 200 {
				records = append(records, &kgo.Record{Key: []byte("key"),
					Value: fmt.Appendf(nil, "value %d of many that are alike", n)})
				n++
			}
			b.produce(client, records...)
		}
		b.start()
		b.awaitEnd()
		require.Equal(t, b.reference(0), b.found(0))
		require.Len(t, b.found(0), 1000)
	})
}

func TestNilAndEmptyStayDistinct(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		b.produce(b.client, &kgo.Record{Key: nil, Value: []byte{}}, &kgo.Record{Key: []byte{}, Value: nil},
			&kgo.Record{Key: nil, Value: nil, Headers: []kgo.RecordHeader{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}}})
		b.start()
		b.awaitEnd()
		records := b.ledger.of(b.topic, 0)
		require.Len(t, records, 3)
		require.True(t, records[0].Key == nil && records[0].Value != nil)
		require.True(t, records[1].Key != nil && records[1].Value == nil)
		require.True(t, records[2].Headers[0].Value == nil && records[2].Headers[1].Value != nil)
	})
}

func TestLargeRecordsPassSmallFetches(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, map[string]string{"max.message.bytes": "6000000"})
		client := b.newClient(kgo.ProducerBatchMaxBytes(6_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
		for i := range 3 {
			value := make([]byte, 5_000_000)
			value[0] = byte(i)
			b.produce(client, &kgo.Record{Value: value})
		}
		b.start(func(c *kafkaconsumer.Config) { c.FetchMaxBytes, c.BatchBytes, c.BufferBytes = 100_000, 1000, 1 })
		b.awaitEnd()
		records := b.ledger.of(b.topic, 0)
		require.Len(t, records, 3)
		for i, r := range records {
			require.Len(t, r.Value, 5_000_000)
			require.Equal(t, byte(i), r.Value[0])
		}
	})
}

func TestAbortedTransactionsAreHidden(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		producers := []*kgo.Client{b.newClient(kgo.TransactionalID(b.topic + "-a")),
			b.newClient(kgo.TransactionalID(b.topic + "-b"))}
		want := map[string]bool{}
		for round := range 8 {
			for _, p := range producers {
				require.NoError(t, p.BeginTransaction())
			}
			for i := range 5 { // interleaved with each other and with plain records
				for j, p := range producers {
					commits := (round+j)%2 == 0
					value := fmt.Sprintf("%d/%d/%d/%v", round, j, i, commits)
					b.produce(p, &kgo.Record{Value: []byte(value)})
					if commits {
						want["="+value] = true
					}
				}
				plain := fmt.Sprintf("%d/plain/%d", round, i)
				b.produce(b.client, &kgo.Record{Value: []byte(plain)})
				want["="+plain] = true
			}
			for j, p := range producers {
				require.NoError(t, p.EndTransaction(t.Context(), kgo.TransactionEndTry((round+j)%2 == 0)))
			}
		}
		c := b.start(func(c *kafkaconsumer.Config) { c.FetchMaxBytes = 300 })
		b.awaitEnd()
		found := b.found(0)
		require.Equal(t, b.reference(0), found)
		require.Len(t, found, len(want))
		for _, value := range found {
			require.True(t, want[value], value)
		}
		eventually(t, "markers count as read", func() bool {
			h := c.Health()
			return len(h.Partitions) == 1 && h.Partitions[0].Lag == 0
		})
		stop(t, c)
		t.Run("all are seen uncommitted", func(t *testing.T) {
			cfg := config(b.brokers, b.topic)
			cfg.GroupID, cfg.SessionTimeout, cfg.Isolation = b.group+"-uncommitted", 6*time.Second, kafkaconsumer.ReadUncommitted
			all := newLedger()
			all.sparse = true
			require.NoError(t, consumer(t, cfg, all).Start(t.Context()))
			eventually(t, "all", func() bool { return all.accepted(b.topic) == 8*15 })
		})
	})
}

func TestOpenTransactionHoldsBackLaterRecords(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		open := b.newClient(kgo.TransactionalID(b.topic + "-open"))
		b.produce(b.client, &kgo.Record{Value: []byte("before")})
		require.NoError(t, open.BeginTransaction())
		b.produce(open, &kgo.Record{Value: []byte("inside")})
		b.produce(b.client, &kgo.Record{Value: []byte("behind")})
		b.start()
		eventually(t, "the first", func() bool { return b.ledger.accepted(b.topic) == 1 })
		require.Never(t, func() bool { return b.ledger.accepted(b.topic) > 1 }, 300*time.Millisecond, 20*time.Millisecond)
		require.NoError(t, open.EndTransaction(t.Context(), kgo.TryAbort))
		b.awaitEnd()
		require.Equal(t, map[int64]string{0: "=before", 2: "=behind"}, b.found(0))
	})
}

// TestCompactedTopicWithEmptyBatchesIsReadToItsEnd needs a real log cleaner. The cleaner keeps the
// last batch of an idempotent producer even when no record is left in it.
func TestCompactedTopicWithEmptyBatchesIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createTopic(1, map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.001",
		"delete.retention.ms": "0", "max.compaction.lag.ms": "200",
	})
	for round := range 6 {
		for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.ZstdCompression()} {
			client := b.newClient(kgo.ProducerBatchCompression(codec)) // idempotent, each with its own producer ID
			for i := range 10 {
				var records []*kgo.Record
				for j := range 4 {
					records = append(records, &kgo.Record{Key: fmt.Appendf(nil, "k%d", j),
						Value: fmt.Appendf(nil, "%d/%d/%d", round, i, j)})
				}
				b.produce(client, records...)
			}
			await(t.Context(), 250*time.Millisecond) // a segment's age depends on the broker's clock
		}
	}
	written := int64(6 * 3 * 10 * 4)
	b.produce(b.client, &kgo.Record{Key: []byte("end"), Value: []byte("end")})
	var want map[int64]string
	eventually(t, "compaction is over", func() bool {
		want = b.reference(0)
		return int64(len(want)) < written/10
	})
	for _, fetchBytes := range []int{1, 300, 1 << 20} {
		for attempt := 0; ; attempt++ {
			b.ledger = newLedger()
			b.ledger.sparse = true
			b.group = fmt.Sprintf("%s-group-%d-%d", b.topic, fetchBytes, attempt)
			b.watch()
			before := b.reference(0)
			c := b.start(func(c *kafkaconsumer.Config) { c.FetchMaxBytes = fetchBytes })
			b.awaitEnd()
			stop(t, c)
			after := b.reference(0)
			if len(before) != len(after) && attempt < 5 {
				continue // the cleaner ran in between
			}
			require.Equal(t, after, b.found(0))
			break
		}
	}
}

func TestRebalanceInMidBatchOnARealBroker(t *testing.T) {
	t.Parallel()
	b := realBench(t).watch()
	b.ledger.sparse = false
	b.createTopic(4, nil)
	slow := atomic.Int32{}
	b.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		if slow.Add(1)%3 != 0 {
			return nil
		}
		timer := time.NewTimer(150 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	small := func(c *kafkaconsumer.Config) { c.BatchRecords = 50 }
	produce := func(n int) {
		var records []*kgo.Record
		for i := range n {
			records = append(records, &kgo.Record{Partition: int32(i % 4), Value: fmt.Append(nil, i)})
		}
		b.produce(b.client, records...)
	}
	produce(2000)
	first := b.start(small)
	eventually(t, "some", func() bool { return b.ledger.accepted(b.topic) > 100 })
	second := b.start(small)
	eventually(t, "shared", func() bool {
		return len(first.Health().Partitions) == 2 && len(second.Health().Partitions) == 2
	})
	produce(2000)
	eventually(t, "more", func() bool { return b.ledger.accepted(b.topic) > 2500 })
	stop(t, first)
	produce(400)
	b.awaitEnd()
	require.Equal(t, 4400, b.ledger.accepted(b.topic))
}

func TestRealBrokerKeepsCommitOfAcceptLongerThanSession(t *testing.T) {
	t.Parallel()
	b := realBench(t).watch()
	b.ledger.sparse = false
	b.createTopic(2, nil)
	entered := make(chan struct{})
	once := atomic.Bool{}
	b.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		if !once.CompareAndSwap(false, true) {
			return nil
		}
		close(entered)
		timer := time.NewTimer(8 * time.Second) // the session is 6 s
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	b.produce(b.client, &kgo.Record{Value: []byte("a")}, &kgo.Record{Partition: 1, Value: []byte("b")})
	patient := func(c *kafkaconsumer.Config) {
		c.SessionTimeout = 6 * time.Second
		c.RebalanceTimeout, c.DrainTimeout, c.AcceptConcurrency = 30*time.Second, 15*time.Second, 1
	}
	b.start(patient)
	receive(t, entered)
	b.start(patient)
	b.awaitEnd()
	require.Equal(t, 2, b.ledger.deliveries(b.topic), "nothing was delivered twice")
}

func TestDeletedAndRecreatedTopicHaltsOrIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createTopic(1, nil)
	for i := range 100 {
		b.produce(b.client, &kgo.Record{Value: fmt.Append(nil, i)})
	}
	c := b.start()
	b.awaitEnd()
	stop(t, c)
	_, err := b.admin.DeleteTopics(t.Context(), b.topic)
	require.NoError(t, err)
	// The broker eventually forgets the offsets of a deleted topic. The group then starts over,
	// whatever the new log contains.
	eventually(t, "forgotten", func() bool {
		committed, err := b.committed(b.group)
		return err == nil && committed[0] <= 0
	})
	eventually(t, "created again", func() bool {
		_, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, b.topic)
		return err == nil
	})
	fresh := b.newClient()
	for i := range 120 {
		b.produce(fresh, &kgo.Record{Value: fmt.Append(nil, "new", i)})
	}
	b.ledger = newLedger()
	b.ledger.sparse = true
	c = b.start()
	eventually(t, "said or read", func() bool {
		return len(c.Health().Halted()) == 1 || b.ledger.accepted(b.topic) == 120
	})
}
