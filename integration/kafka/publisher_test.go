package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/outgoing"
)

// publisher makes a publisher that is closed when the test ends. Its timeouts are long enough for a slow machine.
func publisher(
	t *testing.T, brokers []string, topic string, change ...func(*kafkapublisher.Config),
) *kafkapublisher.Publisher {
	t.Helper()
	cfg := kafkapublisher.Config{Brokers: brokers, Topic: topic, DialTimeout: 10 * time.Second,
		RequestTimeout: 10 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	p, err := kafkapublisher.New(cfg, logger(t), nil)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// keyed returns messages of a key, each with a value of its own.
func keyed(key string, values ...string) (messages []outgoing.Message) {
	for _, value := range values {
		messages = append(messages, outgoing.Message{Channel: "out", ID: fmt.Sprintf("%s/%.20s", key, value), Type: "order.placed",
			Content: []byte(value), Key: []byte(key), StoredAt: time.Now()})
	}
	return messages
}

// createReady makes a topic whose partitions have leaders that know of it, which a real broker's have not at once. Each
// partition begins with a record that published leaves out.
func (b *bench) createReady(partitions int32, configs map[string]string) {
	b.t.Helper()
	b.createTopic(partitions, configs)
	client := b.newClient(kgo.UnknownTopicRetries(100))
	for partition := range partitions {
		b.produce(client, &kgo.Record{Partition: partition, Key: []byte("ready"), Value: []byte("ready")})
	}
}

// published returns the values in the topic, by partition and in their order.
func (b *bench) published() (all []string) {
	b.t.Helper()
	for _, r := range read(b.t, b.client, b.topic) {
		if string(r.Value) != "ready" {
			all = append(all, string(r.Value))
		}
	}
	return all
}

// untilPublished publishes messages as the processor does: those without success come again.
func untilPublished(
	ctx context.Context, p *kafkapublisher.Publisher, due []outgoing.Message, failures *atomic.Int64,
) {
	for len(due) > 0 && ctx.Err() == nil {
		var failed []outgoing.Message
		for i, err := range p.Publish(ctx, due) {
			if err != nil {
				failed = append(failed, due[i])
			}
		}
		failures.Add(int64(len(failed)))
		due = failed
	}
}

func requireRefused(t *testing.T, err error) {
	t.Helper()
	var refused *outgoing.RefusedError
	require.ErrorAs(t, err, &refused)
}

// requireLater requires errors of messages that come again.
func requireLater(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		var refused *outgoing.RefusedError
		require.Error(t, err)
		require.NotErrorAs(t, err, &refused)
	}
}

// eventuallyPublished calls Publish until it publishes all of the messages.
func eventuallyPublished(t *testing.T, p *kafkapublisher.Publisher, messages []outgoing.Message) {
	t.Helper()
	eventually(t, "published", func() bool { return errors.Join(p.Publish(t.Context(), messages)...) == nil })
}

// TestMessagesOfAKeyKeepTheirOrder has callers with keys of their own and keys that all of them have, on more
// partitions than may have a request at once.
func TestMessagesOfAKeyKeepTheirOrder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		const callers, calls, keys, each = 4, 5, 30, 10
		b.createReady(24, nil)
		p := publisher(t, b.brokers, b.topic, func(c *kafkapublisher.Config) { c.MaxRequestBytes = 1000 })
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for call := range calls {
					var messages []outgoing.Message
					for n := range each {
						for k := range keys {
							key := fmt.Sprint("shared-", k)
							if k%2 == 0 {
								key = fmt.Sprint("of-", caller, "-", k)
							}
							messages = append(messages, keyed(key, fmt.Sprintf("%d %s %d", caller, key, call*each+n))...)
						}
					}
					if err := errors.Join(p.Publish(t.Context(), messages)...); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		next, partition := map[string]int{}, map[string]int32{}
		for _, r := range read(t, b.client, b.topic) {
			if string(r.Value) == "ready" {
				continue
			}
			var caller, n int
			var key string
			_, err := fmt.Sscan(string(r.Value), &caller, &key, &n)
			require.NoError(t, err)
			stream := fmt.Sprint(caller, key)
			require.Equal(t, next[stream], n, stream)
			next[stream]++
			if _, seen := partition[key]; !seen {
				partition[key] = r.Partition
			}
			require.Equal(t, partition[key], r.Partition, key)
		}
		require.Len(t, next, callers*keys)
		for stream, n := range next {
			require.Equal(t, calls*each, n, stream)
		}
		require.Greater(t, len(slices.Compact(slices.Sorted(maps.Values(partition)))), 10)
	})
}

// TestKeysGoWhereOtherProducersPutThem compares with franz-go's default, which is Java's, and with the hashes in the
// tests of Apache Kafka.
func TestKeysGoWhereOtherProducersPutThem(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 97), kafkatest.Topic("others", 97))
	hashes := map[string]int32{"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107}
	keys := slices.Collect(maps.Keys(hashes))
	for i := range 1000 {
		keys = append(keys, fmt.Sprint(i, strings.Repeat("\xff", i%9)))
	}
	keys = append(keys, "")
	other, err := kgo.NewClient(append(k.ClientOptions(), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))...)
	require.NoError(t, err)
	defer other.Close()
	var messages []outgoing.Message
	for _, key := range keys {
		messages = append(messages, keyed(key, "x")...)
		require.NoError(t, other.ProduceSync(t.Context(), &kgo.Record{Topic: "others", Key: []byte(key)}).FirstErr())
	}
	require.NoError(t, errors.Join(publisher(t, k.Brokers(), topic).Publish(t.Context(), messages)...))
	placed := func(topic string) map[string]int32 {
		of := map[string]int32{}
		for _, r := range read(t, other, topic) {
			of[string(r.Key)] = r.Partition
		}
		return of
	}
	ours := placed(topic)
	require.Equal(t, placed("others"), ours)
	require.Len(t, ours, len(keys))
	for key, hash := range hashes {
		require.Equal(t, (hash&0x7fffffff)%97, ours[key], key)
	}
}

func TestRecordsWithoutAKeyShareRequestsAndRotate(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 4))
	var requests atomic.Int64
	k.Observe(kmsg.Produce, func() { requests.Add(1) })
	p := publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) { c.MaxRequestBytes = 20_000 })
	client, err := kgo.NewClient(k.ClientOptions()...)
	require.NoError(t, err)
	defer client.Close()
	batch := keyed("", slices.Repeat([]string{"small"}, 10)...)
	for i := range batch {
		batch[i].Key = nil
	}
	perPartition := func() map[int32]int {
		counts := map[int32]int{}
		for _, r := range read(t, client, topic) {
			require.Nil(t, r.Key)
			counts[r.Partition]++
		}
		return counts
	}
	for call := range 4 {
		require.NoError(t, errors.Join(p.Publish(t.Context(), batch)...))
		require.Equal(t, int64(call+1), requests.Load(), "one request for all")
	}
	require.Equal(t, map[int32]int{0: 10, 1: 10, 2: 10, 3: 10}, perPartition())
	for i := range batch {
		batch[i].Content = make([]byte, 9000)
	}
	require.NoError(t, errors.Join(p.Publish(t.Context(), batch[:8])...))
	require.Equal(t, int64(4+4), requests.Load(), "two fit into a request")
	require.Equal(t, map[int32]int{0: 12, 1: 12, 2: 12, 3: 12}, perPartition())
}

// TestRecordTooLargeIsRefusedAlone needs a real broker, which enforces its size limit.
func TestRecordTooLargeIsRefusedAlone(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createReady(1, map[string]string{"max.message.bytes": "2000"})
	p := publisher(t, b.brokers, b.topic)
	messages := slices.Concat(keyed("a", "1"), keyed("b", "2", string(make([]byte, 3000)), "4"), keyed("a", "5"),
		keyed("", "6"), keyed("b", "7"), keyed("c", "8"))
	messages[5].Key = nil
	results := p.Publish(t.Context(), messages)
	for i, err := range results {
		switch i {
		case 2:
			requireRefused(t, err)
			require.ErrorContains(t, err, fmt.Sprintf("topic %q: ", b.topic))
			require.ErrorContains(t, err, "max.message.bytes")
		case 3, 6:
			require.ErrorIs(t, err, outgoing.ErrNotTried)
		default:
			require.NoError(t, err)
		}
	}
	require.Equal(t, []string{"1", "2", "5", "6", "8"}, b.published())
}

// TestDefaultRequestsFitIntoADefaultTopic needs a real broker, which enforces its size limit.
func TestDefaultRequestsFitIntoADefaultTopic(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createReady(1, nil)
	messages := keyed("k", slices.Repeat([]string{string(make([]byte, 900))}, 4000)...)
	messages = append(messages, keyed("k", string(make([]byte, 1_040_000)))...) // larger than a request usually is
	results := publisher(t, b.brokers, b.topic).Publish(t.Context(), messages)
	require.NoError(t, errors.Join(results...))
	require.Len(t, b.published(), len(messages))
}

// TestKeylessRecordOfACompactedTopicIsRefused covers a refusal that names the record, not the request.
func TestKeylessRecordOfACompactedTopicIsRefused(t *testing.T) {
	t.Parallel()
	b := realBench(t)
	b.createReady(1, map[string]string{"cleanup.policy": "compact"})
	messages := keyed("a", "1", "2", "3")
	messages[1].Key = nil
	results := publisher(t, b.brokers, b.topic).Publish(t.Context(), messages)
	require.NoError(t, errors.Join(results[0], results[2]))
	requireRefused(t, results[1])
	require.Equal(t, []string{"1", "3"}, b.published())
}

func TestPublisherWaitsForAMissingTopicAndNeverCreatesIt(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, brokers []string) {
		b := newBench(t, brokers)
		p := publisher(t, b.brokers, b.topic)
		for range 3 {
			results := p.Publish(t.Context(), keyed("k", "1", "2"))
			requireLater(t, results...)
			require.ErrorContains(t, results[1], fmt.Sprintf("topic %q does not exist: create it", b.topic))
		}
		require.False(t, b.exists(b.topic))
		b.createTopic(2, nil)
		eventuallyPublished(t, p, keyed("k", "1", "2"))
		require.Equal(t, []string{"1", "2"}, b.published())
	}
	t.Run("in-process", func(t *testing.T) { test(t, kafkatest.Start(t, kafkatest.AutoCreateTopics()).Brokers()) })
	t.Run("real", func(t *testing.T) { test(t, realBench(t).brokers) })
}

func TestPublishedMessagesHaveAcknowledgementsOfAllReplicas(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	acks := make(chan int16, 10)
	k.Cluster().ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		acks <- request.(*kmsg.ProduceRequest).Acks
		return nil, nil, false
	})
	require.NoError(t, publisher(t, k.Brokers(), topic).Publish(t.Context(), keyed("k", "1"))[0])
	require.EqualValues(t, -1, receive(t, acks))
}

func TestBrokersRefusalDecidesWhetherTheMessageComesAgain(t *testing.T) {
	t.Parallel()
	for code, c := range map[int16]struct {
		refused bool
		says    string
	}{
		10: {true, "raise its max.message.bytes"}, 18: {true, "raise its max.message.bytes"}, 43: {true, ""}, 87: {true, ""},
		3: {false, ""}, 6: {false, ""}, answerLost: {false, ""}, -1: {false, ""},
		19: {false, "fewer replicas are in sync than its min.insync.replicas"},
		20: {false, "fewer replicas are in sync than its min.insync.replicas"},
		29: {false, "a client without a user needs the right WRITE on the topic"},
		32: {false, "the clock of this machine or of the broker is wrong"},
	} {
		t.Run(fmt.Sprint("code ", code), func(t *testing.T) {
			t.Parallel()
			k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
			p := publisher(t, k.Brokers(), topic)
			require.NoError(t, p.Publish(t.Context(), keyed("before", "0"))[0])
			fault := k.FailNext(kmsg.Produce, code, -1)
			results := p.Publish(t.Context(), slices.Concat(keyed("a", "1"), keyed("b", "2"), keyed("b", "3")))
			for _, err := range results {
				require.ErrorContains(t, err, `topic "orders"`)
				require.ErrorContains(t, err, c.says)
			}
			if c.refused {
				requireRefused(t, results[0])
				requireRefused(t, results[1])
				require.ErrorIs(t, results[2], outgoing.ErrNotTried)
				require.Equal(t, 3, fault.Hits(), "the request, and each key alone")
			} else {
				requireLater(t, results...)
				require.Equal(t, 1, fault.Hits())
			}
			fault.Remove()
			require.NoError(t, p.Publish(t.Context(), keyed("b", "3"))[0])
		})
	}
}

// TestFailedRequestStopsItsPartitionAlone proves that no later message of a key is published in the same call.
func TestFailedRequestStopsItsPartitionAlone(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
	var asked atomic.Int64
	k.Cluster().ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		if request.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Partition == 1 && asked.Add(1) == 2 {
			return nil, errors.New("lost on purpose"), true
		}
		return nil, nil, false
	})
	p := publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) { c.MaxRequestBytes = 1 })
	results := p.Publish(t.Context(), slices.Concat(keyed("21", "0", "1", "2"), // of partition 0, and the others of 1
		keyed("abc", "0", "1", "2"), keyed("a-little-bit-longer-string", "other")))
	require.NoError(t, errors.Join(results[:4]...))
	requireLater(t, results[4:]...)
	require.NotErrorIs(t, results[4], outgoing.ErrNotTried)
	require.ErrorIs(t, results[5], outgoing.ErrNotTried)
	require.ErrorIs(t, results[6], outgoing.ErrNotTried)
	require.EqualValues(t, 2, asked.Load())
}

// TestLostResponseIsAnErrorAndTheMessageComesAgain cuts responses after the broker has written the records.
func TestLostResponseIsAnErrorAndTheMessageComesAgain(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createReady(1, nil)
		proxy, err := kafkaproxy.Start(b.brokers[0])
		require.NoError(t, err)
		t.Cleanup(proxy.Close)
		p := publisher(t, b.brokers, b.topic, func(c *kafkapublisher.Config) {
			c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) { // the broker names its own address
				return (&net.Dialer{}).DialContext(ctx, network, proxy.Address())
			}
		})
		eventuallyPublished(t, p, keyed("k", "first"))
		written := func() int { return len(b.published()) }
		eventually(t, "a lost response of a record that is written", func() bool { // it may cut other responses before
			before := written()
			proxy.CutAnswers(1, 0)
			err := p.Publish(t.Context(), keyed("k", "lost"))[0]
			if err != nil {
				requireLater(t, err)
			}
			return err != nil && written() > before
		})
		proxy.CutAnswers(0, 0)
		eventuallyPublished(t, p, keyed("k", "lost", "last"))
		all := b.published()
		require.Equal(t, []string{"lost", "last"}, all[len(all)-2:])
		require.Equal(t, []string{"first", "lost", "last"}, slices.Compact(all), "in order, with repetitions")
	})
}

// TestPublishingSurvivesACrashOfTheBroker kills a broker under load. Whatever was reported as published is there, and
// the first record of each message is in order.
func TestPublishingSurvivesACrashOfTheBroker(t *testing.T) {
	t.Parallel()
	broker, err := servers.StartKafka(servers.KafkaOptions{})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	b := newBench(t, broker.Brokers())
	b.createReady(6, nil)
	p := publisher(t, b.brokers, b.topic, func(c *kafkapublisher.Config) {
		c.MaxRequestBytes, c.RequestTimeout, c.DialTimeout = 2000, 2*time.Second, 2*time.Second
	})
	const callers = 3
	var published [callers]atomic.Int64
	var failures atomic.Int64
	ctx, stopCalls := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; {
				var due []outgoing.Message
				for k := range 20 {
					due = append(due, keyed(fmt.Sprint(caller, "-", k), fmt.Sprintf("%d-%d %d", caller, k, n))...)
				}
				untilPublished(ctx, p, due, &failures)
				if ctx.Err() == nil {
					n++
					published[caller].Store(int64(n))
				}
			}
		})
	}
	defer all.Wait()
	defer stopCalls()
	progress := func() {
		t.Helper()
		before := [callers]int64{}
		for i := range published {
			before[i] = published[i].Load()
		}
		eventually(t, "each caller publishes", func() bool {
			for i := range published {
				if published[i].Load() < before[i]+3 {
					return false
				}
			}
			return true
		})
	}
	for range 2 {
		progress()
		require.NoError(t, broker.Kill())
		failed := failures.Load()
		eventually(t, "calls fail", func() bool { return failures.Load() > failed })
		require.NoError(t, broker.Start())
	}
	progress()
	stopCalls()
	all.Wait()
	next := map[string]int64{}
	for _, value := range b.published() {
		var key string
		var n int64
		_, err := fmt.Sscan(value, &key, &n)
		require.NoError(t, err)
		require.LessOrEqual(t, n, next[key], "%s: a message before an earlier one", key)
		if n == next[key] {
			next[key]++
		}
	}
	for caller := range callers {
		for k := range 20 {
			require.GreaterOrEqual(t, next[fmt.Sprint(caller, "-", k)], published[caller].Load())
		}
	}
}

func TestOutageIsAnErrorUntilTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 3))
	p := publisher(t, k.Brokers(), topic)
	require.NoError(t, p.Publish(t.Context(), keyed("k", "1"))[0])
	k.Stop()
	results := p.Publish(t.Context(), keyed("k", "2", "3"))
	requireLater(t, results...)
	require.ErrorContains(t, results[0], `topic "orders"`)
	require.NoError(t, k.Restart())
	eventuallyPublished(t, p, keyed("k", "2", "3"))
}

func TestSilentBrokerFailsTheCallWithinItsTimeouts(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 3))
	p := publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) { c.RequestTimeout = 200 * time.Millisecond })
	eventuallyPublished(t, p, keyed("k", "1"))
	k.Freeze()
	requireLater(t, p.Publish(t.Context(), keyed("k", "2"))...)
	require.NoError(t, k.Restart())
	eventuallyPublished(t, p, keyed("k", "2"))
}

// TestSilentBrokersFailACallOnce has more partitions than may have a request at once: the others are not tried.
func TestSilentBrokersFailACallOnce(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 30))
	p := publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) { c.RequestTimeout = 300 * time.Millisecond })
	var messages []outgoing.Message
	for i := range 200 {
		messages = append(messages, keyed(strconv.Itoa(i), "1")...)
	}
	eventuallyPublished(t, p, messages)
	k.Freeze()
	results := p.Publish(t.Context(), messages)
	requireLater(t, results...)
	tried := slices.DeleteFunc(results, func(err error) bool { return errors.Is(err, outgoing.ErrNotTried) })
	require.NotEmpty(t, tried)
	require.Less(t, len(tried), len(messages)/2)
}

// open counts the connections of an outgoing channel.
type open struct {
	net.Conn
	count *atomic.Int64
	once  sync.Once
}

func (o *open) Close() error {
	o.once.Do(func() { o.count.Add(-1) })
	return o.Conn.Close()
}

func TestProcessPendingLeavesNoConnectionOpen(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Topic(topic, 3))
	var count, all atomic.Int64
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Outgoing("out", inbox.ToKafka(kafkapublisher.Config{Brokers: k.Brokers(),
			Topic: topic, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				count.Add(1)
				all.Add(1)
				return &open{Conn: conn, count: &count}, nil
			}})))
		for _, id := range []string{"1", "2"} {
			_, err := ib.Accept(t.Context(), handler.RawMessage{Channel: "out", Type: "t", ID: id, Content: []byte("{}")})
			require.NoError(t, err)
			require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
			eventually(t, "closed", func() bool { return count.Load() == 0 })
		}
	})
	require.Positive(t, all.Load())
}

// producing signals that a request with a large record is sent.
type producing struct {
	net.Conn
	sent chan<- struct{}
}

const producedBytes = 10_000

func (p producing) Write(b []byte) (int, error) {
	if len(b) >= producedBytes/10 {
		select {
		case p.sent <- struct{}{}:
		default:
		}
	}
	return p.Conn.Write(b)
}

func TestPublishEndsWithItsContextAndWithClose(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(cancel func(), p *kafkapublisher.Publisher){
		"context": func(cancel func(), _ *kafkapublisher.Publisher) { cancel() },
		"close":   func(_ func(), p *kafkapublisher.Publisher) { p.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			k := kafkatest.Start(t, kafkatest.Topic(topic, 20))
			asked := make(chan struct{}, 100)
			p := publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) {
				c.RequestTimeout, c.DialTimeout = time.Hour, time.Hour
				c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
					return producing{conn, asked}, err
				}
			})
			eventuallyPublished(t, p, keyed("k", "1"))
			k.Freeze()
			var messages []outgoing.Message
			for i := range 100 {
				messages = append(messages, keyed(fmt.Sprint(i), string(make([]byte, producedBytes)))...)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			results := make(chan []error, 1)
			go func() { results <- p.Publish(ctx, messages) }()
			receive(t, asked)
			end(cancel, p)
			require.Error(t, errors.Join(receive(t, results)...))
			require.NoError(t, k.Restart())
		})
	}
}

func TestPublishedMessageIsReadBackByTheDefaultDecoder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createReady(1, nil)
		occurred := time.Date(2026, 3, 4, 5, 6, 7, 8_000, time.UTC)
		sent := outgoing.Message{Channel: "out", ID: "m-1", Type: "order.placed", Source: "/shop", ContentType: "text/plain",
			Content: []byte("\x00\xff body"), Key: []byte("\x00k"), OccurredAt: occurred, StoredAt: time.Now(),
			Headers: []handler.Header{{Key: "own", Value: []byte{0xff}}, {Key: "own", Value: nil},
				{Key: "empty", Value: []byte{}}},
			Attributes:  map[string]string{"subject": "7"},
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		began := time.Now().Truncate(time.Millisecond)
		for _, format := range []kafkapublisher.Format{kafkapublisher.CloudEvents, kafkapublisher.Headers} {
			p := publisher(t, b.brokers, b.topic, func(c *kafkapublisher.Config) { c.Format = format })
			require.NoError(t, p.Publish(t.Context(), []outgoing.Message{sent})[0])
		}
		decoder, err := envelope.NewDecoder(envelope.DecoderConfig{}, nil)
		require.NoError(t, err)
		for i, r := range read(t, b.client, b.topic)[1:] {
			require.False(t, r.Timestamp.Before(began), "it is the time of publishing")
			record := envelope.Record{Topic: r.Topic, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				record.Headers = append(record.Headers, handler.Header{Key: h.Key, Value: h.Value})
			}
			received := decoder.Decode("in", record)
			require.NoError(t, received.Err)
			got := received.Messages[0]
			require.NoError(t, got.IDErr)
			require.Equal(t, []any{sent.ID, sent.Type, sent.ContentType, sent.Content, sent.Key},
				[]any{got.ID, got.Type, got.ContentType, got.Content, got.OrderingKey})
			require.Equal(t, sent.Headers, got.Properties.Headers[:len(sent.Headers)])
			require.Equal(t, sent.Traceparent, header(r, "traceparent"))
			if i == 0 {
				require.Equal(t, sent.Source, got.Source)
				require.Equal(t, occurred, properties.OccurredAt(got.Properties))
				require.Equal(t, "7", got.Properties.Attributes["subject"])
			}
		}
	})
}

func TestPublisherUsesItsCredentials(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1), kafkatest.SASL("SCRAM-SHA-512", "inbox", "secret"))
	as := func(password string) *kafkapublisher.Publisher {
		return publisher(t, k.Brokers(), topic, func(c *kafkapublisher.Config) {
			c.SASL.Mechanism, c.SASL.Username, c.SASL.Password = "SCRAM-SHA-512", "inbox", password
		})
	}
	require.NoError(t, as("secret").Publish(t.Context(), keyed("k", "1"))[0])
	err := as("wrong-horse").Publish(t.Context(), keyed("k", "2"))[0]
	requireLater(t, err)
	require.NotContains(t, err.Error(), "wrong-horse")
}

// writing checks the right that publishing needs, over TLS.
func (s secured) writing(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	as := func(password string) *kafkapublisher.Publisher {
		return publisher(t, s.Listener(saslTLSListener), b.topic, func(c *kafkapublisher.Config) {
			c.TLS = s.authority.trust()
			c.SASL.Mechanism, c.SASL.Username, c.SASL.Password = "SCRAM-SHA-256", b.topic, password
		})
	}
	p := as(password)
	grant(b, topicRight(b, kadm.OpDescribe))
	says := func(p *kafkapublisher.Publisher, words string) {
		t.Helper()
		eventually(t, words, func() bool {
			err := p.Publish(t.Context(), keyed("k", "1"))[0]
			requireLater(t, err)
			return strings.Contains(err.Error(), fmt.Sprintf("topic %q: ", b.topic)) &&
				strings.Contains(err.Error(), fmt.Sprintf("user %q (SCRAM-SHA-256) %s", b.topic, words))
		})
	}
	says(as("wrong-horse"), "is refused")
	says(p, "needs the right WRITE on the topic")
	grant(b, topicRight(b, kadm.OpWrite))
	eventuallyPublished(t, p, keyed("k", "1"))
	require.Equal(t, []string{"1"}, slices.Compact(b.published()))
}
