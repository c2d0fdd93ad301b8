package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

const letters = "letters"

var errBad = errors.New("it is bad")

// judge is an acceptor that stores nothing and returns a disposition for each record.
type judge func(envelope.Record) envelope.Disposition

func (judge) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

func (judge) PartitionRequests(context.Context, string) ([]models.PartitionRequest, error) {
	return nil, nil
}

func (judge) CarryOut(
	context.Context, models.PartitionRequest, *envelope.Received, *envelope.Gap,
) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

func (j judge) AcceptRecords(_ context.Context, _ string, received []envelope.Received) ([]envelope.Result, error) {
	results := make([]envelope.Result, len(received))
	for i, r := range received {
		if results[i].Disposition = j(r.Record); results[i].Disposition != envelope.Durable {
			results[i].Err, results[i].Reason = errBad, errBad.Error()
		}
	}
	return results, nil
}

// everySecond rejects every second record of a partition.
func everySecond(r envelope.Record) envelope.Disposition {
	if r.Offset%2 == 1 {
		return envelope.DeadLetter
	}
	return envelope.Durable
}

func always(envelope.Record) envelope.Disposition { return envelope.DeadLetter }

// read returns all records of a topic, by partition and offset.
func read(t *testing.T, client *kgo.Client, topic string) (records []*kgo.Record) {
	t.Helper()
	var ends kadm.ListedOffsets
	eventually(t, "the client knows of the topic", func() bool { // the topic may be new
		var err error
		ends, err = kadm.NewClient(client).ListEndOffsets(t.Context(), topic)
		return err == nil && ends.Error() == nil
	})
	from, left := map[int32]kgo.Offset{}, int64(0)
	ends.Each(func(o kadm.ListedOffset) {
		require.NoError(t, o.Err)
		from[o.Partition] = kgo.NewOffset().AtStart()
		left += o.Offset
	})
	reader, err := kgo.NewClient(append(client.Opts(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))...)
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for int64(len(records)) < left {
		records = append(records, reader.PollFetches(ctx).Records()...)
		require.NoError(t, ctx.Err())
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	return records
}

// header returns the value of the last header with that name.
func header(r *kgo.Record, name string) string {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// lettersOf returns the origins of a dead-letter topic's records, as "partition/offset" in the
// topic's order.
func lettersOf(records []*kgo.Record) (coordinates []string) {
	for _, r := range records {
		coordinates = append(coordinates, header(r, kafkaconsumer.HeaderPartition)+"/"+header(r, kafkaconsumer.HeaderOffset))
	}
	return coordinates
}

func (r *rig) client() *kgo.Client {
	r.t.Helper()
	client, err := kgo.NewClient(r.kafka.ClientOptions()...)
	require.NoError(r.t, err)
	r.t.Cleanup(client.Close)
	return client
}

// newDead makes a rig for dead letters. It has no checks of accepted records, because these tests
// check what is published.
func newDead(t *testing.T, partitions int, opts ...kafkatest.Option) *rig {
	t.Helper()
	return &rig{t: t, kafka: kafkatest.Start(t, append(opts, kafkatest.Topic(topic, partitions))...),
		next: map[place]int{}}
}

// judged starts a consumer with a dead-letter topic and j as its acceptor.
func (r *rig) judged(j judge, change ...func(*kafkaconsumer.Config)) *kafkaconsumer.Consumer {
	r.t.Helper()
	c := consumer(r.t, config(r.kafka.Brokers(), topic), j,
		append([]func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) {
			c.DeadLetterTopic, c.DrainTimeout = letters, 100*time.Millisecond
		}}, change...)...)
	require.NoError(r.t, c.Start(r.t.Context()))
	return c
}

func withLetters(cfg *kafkaconsumer.Config, topic string) { cfg.DeadLetterTopic = topic }

// TestDeadLetterHasTheRecordsBytesAndOrigin proves contract 7.4.
func TestDeadLetterHasTheRecordsBytesAndOrigin(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		dead := b.topic + "-letters"
		_, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, dead)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = b.admin.DeleteTopics(context.Background(), dead) })
		sent := []*kgo.Record{
			{Key: nil, Value: []byte{}, Timestamp: time.UnixMilli(1_700_000_000_123),
				Headers: []kgo.RecordHeader{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}},
					{Key: "\xff", Value: []byte{0xfe}}}},
			{Key: []byte{}, Value: nil, Timestamp: time.UnixMilli(1_700_000_000_124)},
			{Key: []byte{0}, Value: []byte("\xff\x00"), Timestamp: time.UnixMilli(1_700_000_000_125),
				Headers: []kgo.RecordHeader{{Key: kafkaconsumer.HeaderTopic, Value: []byte("its own")}}},
			{Key: []byte("large"), Value: make([]byte, 700<<10), Timestamp: time.UnixMilli(1_700_000_000_126)},
		}
		b.produce(b.client, sent...)
		cfg := config(b.brokers, b.topic)
		cfg.GroupID, cfg.SessionTimeout = b.group, 6*time.Second
		c := consumer(t, cfg, judge(always), func(c *kafkaconsumer.Config) { withLetters(c, dead) })
		require.NoError(t, c.Start(t.Context()))
		b.awaitEnd()
		got := read(t, b.client, dead)
		require.Len(t, got, len(sent))
		for i, r := range got {
			require.Equal(t, sent[i].Key, r.Key, i)
			require.Equal(t, sent[i].Key == nil, r.Key == nil, i)
			require.Equal(t, sent[i].Value == nil, r.Value == nil, i)
			require.Equal(t, sent[i].Value, r.Value, i)
			require.Equal(t, sent[i].Timestamp.UnixMilli(), r.Timestamp.UnixMilli(), i)
			own := len(sent[i].Headers)
			for j, h := range sent[i].Headers {
				require.Equal(t, h, r.Headers[j], i)
			}
			require.Equal(t, []kgo.RecordHeader{
				{Key: kafkaconsumer.HeaderTopic, Value: []byte(b.topic)}, {Key: kafkaconsumer.HeaderPartition, Value: []byte("0")},
				{Key: kafkaconsumer.HeaderOffset, Value: fmt.Append(nil, i)},
				{Key: kafkaconsumer.HeaderTimestamp, Value: fmt.Append(nil, 1_700_000_000_123+i)},
				{Key: kafkaconsumer.HeaderChannel, Value: []byte("orders.events")},
				{Key: kafkaconsumer.HeaderGroup, Value: []byte(b.group)},
				{Key: kafkaconsumer.HeaderReason, Value: []byte(errBad.Error())},
			}, r.Headers[own:], i)
		}
	})
}

// TestConsumerWaitsForAMissingDeadLetterTopic proves contract 7.4. Requests never
// create a missing topic.
func TestConsumerWaitsForAMissingDeadLetterTopic(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		dead := b.topic + "-letters"
		t.Cleanup(func() { _, _ = b.admin.DeleteTopics(context.Background(), dead) })
		for range 5 {
			b.produce(b.client, &kgo.Record{Value: []byte("x")})
		}
		core, logs := observer.New(zap.WarnLevel)
		cfg := config(b.brokers, b.topic)
		cfg.GroupID, cfg.SessionTimeout, cfg.DeadLetterTopic = b.group, 6*time.Second, dead
		c, err := kafkaconsumer.New("orders.events", cfg, judge(func(r envelope.Record) envelope.Disposition {
			if r.Offset == 2 {
				return envelope.DeadLetter
			}
			return envelope.Durable
		}), zap.New(core), nil)
		require.NoError(t, err)
		t.Cleanup(func() { stop(t, c) })
		require.NoError(t, c.Start(t.Context()))
		eventually(t, "reported", func() bool { return c.Health().DeadLetterErr != nil })
		h := c.Health()
		require.ErrorContains(t, h.DeadLetterErr, fmt.Sprintf("dead-letter topic %q does not exist", dead))
		require.ErrorContains(t, h.Err(), "bad records cannot be published since")
		require.False(t, h.DeadLetterFailingSince.IsZero())
		eventually(t, "what is before it is committed", func() bool {
			committed, err := b.committed(b.group)
			return err == nil && committed[0] == 2
		})
		topics, err := b.admin.ListTopics(t.Context(), dead)
		require.NoError(t, err)
		require.False(t, topics.Has(dead), "it is not created")

		_, err = b.admin.CreateTopic(t.Context(), 1, 1, nil, dead)
		require.NoError(t, err)
		eventually(t, "all committed", func() bool {
			committed, err := b.committed(b.group)
			return err == nil && committed[0] == 5
		})
		require.Equal(t, []string{"0/2"}, lettersOf(read(t, b.client, dead)))
		require.NoError(t, c.Health().DeadLetterErr)
		require.Equal(t, 1, logs.FilterMessageSnippet("dead-letter publish failing").Len(), "logged once")
		logged := logs.FilterMessageSnippet("bad record published to the dead-letter topic").All()
		require.Len(t, logged, 1)
		require.Equal(t, []any{b.topic, int64(0), int64(2), dead}, []any{logged[0].ContextMap()["topic"],
			logged[0].ContextMap()["partition"], logged[0].ContextMap()["offset"], logged[0].ContextMap()["dead_letter_topic"]})
	})
}

// TestRecordTooLargeForDeadLetterTopicHaltsItsPartition proves contract 7.4 on a real
// broker, which enforces its size limit.
func TestRecordTooLargeForDeadLetterTopicHaltsItsPartition(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createTopic(2, nil)
	dead := b.topic + "-letters"
	limit := "2000"
	_, err := b.admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &limit}, dead)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = b.admin.DeleteTopics(context.Background(), dead) })
	for _, size := range []int{900, 900, 3000, 10} {
		b.produce(b.client, &kgo.Record{Value: make([]byte, size)})
	}
	b.produce(b.client, &kgo.Record{Partition: 1, Value: []byte("x")})
	cfg := config(b.brokers, b.topic)
	cfg.GroupID, cfg.SessionTimeout = b.group, 6*time.Second
	halts := make(chan error, 5)
	c := consumer(t, cfg, judge(always), func(c *kafkaconsumer.Config) {
		withLetters(c, dead)
		c.OnHalt = func(_ string, partition int, reason error) {
			require.Zero(t, partition)
			halts <- reason
		}
	})
	require.NoError(t, c.Start(t.Context()))
	var refused *kafkaconsumer.DeadLetterError
	require.ErrorAs(t, receive(t, halts), &refused)
	require.Equal(t, dead, refused.Topic)
	require.ErrorIs(t, refused, errBad)
	eventually(t, "committed up to it, and the other partition", func() bool {
		committed, err := b.committed(b.group)
		return err == nil && committed[0] == 2 && committed[1] == 1
	})
	require.ElementsMatch(t, []string{"0/0", "0/1", "1/0"}, lettersOf(read(t, b.client, dead)))
	require.NoError(t, c.Health().DeadLetterErr, "the halt says it")
	require.ErrorContains(t, c.Health().Err(), "refuses the bad record")
}

// TestDeadLettersAreAcknowledgedByAllReplicas proves contract 2 and 7.4.
func TestDeadLettersAreAcknowledgedByAllReplicas(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1, kafkatest.Topic(letters, 1))
	r.produce(2, 0)
	acks := make(chan int16, 10)
	r.kafka.Cluster().ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		acks <- request.(*kmsg.ProduceRequest).Acks
		return nil, nil, false
	})
	r.judged(everySecond)
	require.EqualValues(t, -1, receive(t, acks))
	eventually(t, "all committed", func() bool { return r.committed(0) == 2 })
}

func TestDeadLettersOfAPartitionKeepTheirOrderAndAreLogged(t *testing.T) {
	t.Parallel()
	r := newDead(t, 3, kafkatest.Topic(letters, 2))
	for p := range 3 {
		for range 100 {
			require.NoError(t, r.kafka.Produce(topic, kafkatest.Record{Partition: p, Value: make([]byte, 50_000)}))
		}
	}
	var mu sync.Mutex
	logged := map[string]int{}
	r.judged(everySecond, func(c *kafkaconsumer.Config) {
		c.BatchBytes, c.OnDeadLetter = 20<<20, func(record envelope.Record, reason error) {
			mu.Lock()
			defer mu.Unlock()
			logged[fmt.Sprint(record.Partition, "/", record.Offset)]++
			if !errors.Is(reason, errBad) {
				logged[reason.Error()]++
			}
			panic("not our trouble")
		}
	})
	eventually(t, "all committed", func() bool { return r.committed(0)+r.committed(1)+r.committed(2) == 300 })
	published := read(t, r.client(), letters)
	require.Len(t, published, 150)
	last := map[string]int{}
	for _, letter := range published {
		partition := header(letter, kafkaconsumer.HeaderPartition)
		offset, err := strconv.Atoi(header(letter, kafkaconsumer.HeaderOffset))
		require.NoError(t, err)
		if offset != 1 {
			require.Equal(t, last[partition]+2, offset)
		}
		last[partition] = offset
		id, err := strconv.Atoi(partition)
		require.NoError(t, err)
		require.Equal(t, int32(id%2), letter.Partition, "a partition's letters stay together")
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, logged, 150)
}

// TestDeadLetterWithATransientFailureIsRetried proves contract 7.4: a temporary failure to publish
// is retried. It does not hold back good records that are accepted with the bad one, neither those
// before it nor those of other partitions. Records after it wait.
func TestDeadLetterWithATransientFailureIsRetried(t *testing.T) {
	t.Parallel()
	for code, name := range map[int16]string{
		3: "unknown topic", 6: "not leader", answerLost: "timed out", 19: "not enough replicas",
		20: "not enough replicas after append", 29: "not authorized", -1: "unknown error",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDead(t, 2, kafkatest.Topic(letters, 1))
			r.produce(3, 0) // the second is bad
			r.produce(1, 1)
			fault := r.kafka.FailNext(kmsg.Produce, code, -1)
			c := r.judged(everySecond, func(c *kafkaconsumer.Config) {
				c.AcceptConcurrency, c.BatchRecords, c.Linger = 1, 4, patience // all of them in one accept
			})
			eventually(t, "reported", func() bool { return c.Health().DeadLetterErr != nil && fault.Hits() > 2 })
			eventually(t, "what does not wait is committed", func() bool {
				return r.committed(0) == 1 && r.committed(1) == 1
			})
			require.Empty(t, c.Health().Halted())
			fault.Remove()
			eventually(t, "all committed", func() bool { return r.committed(0) == 3 })
			require.Equal(t, []string{"0/1"}, slices.Compact(lettersOf(read(t, r.client(), letters))))
		})
	}
}

func TestPermanentlyRefusedDeadLetterHalts(t *testing.T) {
	t.Parallel()
	for code, name := range map[int16]string{10: "message too large", 18: "record list too large", 32: "invalid timestamp",
		43: "unsupported for format", 87: "invalid record"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDead(t, 2, kafkatest.Topic(letters, 1))
			r.produce(4, 0)
			fault := r.kafka.FailNext(kmsg.Produce, code, 2) // the request with both, then the first alone
			c := r.judged(everySecond)
			eventually(t, "halted", func() bool { return len(c.Health().Halted()) == 1 && r.committed(0) == 1 })
			var refused *kafkaconsumer.DeadLetterError
			require.ErrorAs(t, c.Health().Halted()[0].Halted, &refused)
			require.Equal(t, 2, fault.Hits())
			require.Empty(t, read(t, r.client(), letters))
			stop(t, c)
			r.judged(everySecond)
			eventually(t, "it goes on once it can", func() bool { return r.committed(0) == 4 })
			require.Equal(t, []string{"0/1", "0/3"}, lettersOf(read(t, r.client(), letters)))
		})
	}
}

// answerLost is an error code that is returned after the record was written, because the in-process
// Kafka handles a produce request that it answers with this code.
const answerLost = 7

// TestDeadLetterWithLostResponseIsRepeated proves contract 7.4: a dead letter whose response was lost
// is published again.
func TestDeadLetterWithLostResponseIsRepeated(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1, kafkatest.Topic(letters, 1))
	r.produce(4, 0)
	r.kafka.FailNext(kmsg.Produce, answerLost, 1)
	r.judged(everySecond)
	eventually(t, "all committed", func() bool { return r.committed(0) == 4 })
	require.Equal(t, []string{"0/1", "0/3", "0/1", "0/3"}, lettersOf(read(t, r.client(), letters)))
}

func TestStopDuringFailingDeadLettersCommitsNothingPastThem(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1, kafkatest.Topic(letters, 1))
	r.produce(4, 0)
	fault := r.kafka.FailNext(kmsg.Produce, 19, -1)
	c := r.judged(everySecond, func(c *kafkaconsumer.Config) {
		c.RebalanceTimeout, c.DrainTimeout = 2*time.Minute, time.Minute
	})
	eventually(t, "failing", func() bool { return c.Health().DeadLetterErr != nil })
	start := time.Now()
	stop(t, c)
	require.Less(t, time.Since(start), patience/4, "without using up DrainTimeout")
	require.Equal(t, int64(1), r.committed(0))
	fault.Remove()
	r.judged(everySecond)
	eventually(t, "all committed", func() bool { return r.committed(0) == 4 })
	require.Equal(t, []string{"0/1", "0/3"}, lettersOf(read(t, r.client(), letters)))
}

func TestDeadLetterWithoutATopicHalts(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1)
	r.produce(4, 0)
	c := r.judged(everySecond, func(c *kafkaconsumer.Config) { c.DeadLetterTopic = "" })
	eventually(t, "halted", func() bool { return len(c.Health().Halted()) == 1 && r.committed(0) == 1 })
	require.ErrorContains(t, c.Health().Err(), "no DeadLetterTopic is configured")
	require.ErrorIs(t, c.Health().Err(), errBad)
}

func TestDeadLettersUseTheConsumersCredentials(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1, kafkatest.Topic(letters, 1), kafkatest.SASL("SCRAM-SHA-512", "inbox", "secret"))
	r.produce(2, 0)
	r.judged(everySecond, func(c *kafkaconsumer.Config) {
		c.SASL = kafkaconsumer.SASL{Mechanism: "SCRAM-SHA-512", Username: "inbox", Password: "secret"}
	})
	eventually(t, "all committed", func() bool { return r.committed(0) == 2 })
	require.Equal(t, []string{"0/1"}, lettersOf(read(t, r.client(), letters)))
}

// TestDeadLetterWithTooManyHeadersHasThemInOne proves contract 7.4: when headers are kept in one
// piece, they become one header.
func TestDeadLetterWithTooManyHeadersHasThemInOne(t *testing.T) {
	t.Parallel()
	r := newDead(t, 1, kafkatest.Topic(letters, 1))
	headers := []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte("2")},
		{Key: "c", Value: []byte("3")}}
	require.NoError(t, r.client().ProduceSync(t.Context(),
		&kgo.Record{Topic: topic, Value: []byte("v"), Headers: headers}).FirstErr())
	r.judged(always, func(c *kafkaconsumer.Config) { c.Decoder.MaxHeaders = 2 })
	eventually(t, "committed", func() bool { return r.committed(0) == 1 })
	letter := read(t, r.client(), letters)[0]
	require.Equal(t, "\x06\x02a\x021\x02b\x022\x02c\x023", header(letter, kafkaconsumer.HeaderHeaders))
	require.Len(t, letter.Headers, 8)
}
