// Package kafka tests kafkaconsumer against an in-process Kafka that can be told to fail, and
// against a real broker if there is one.
package kafka

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	topic    = "orders"
	group    = "fulfilment"
	patience = testenv.Patience
)

// rig is a Kafka with one topic and a ledger.
type rig struct {
	t      *testing.T
	kafka  *kafkatest.Kafka
	ledger *ledger
	next   map[place]int
	served atomic.Pointer[[]craftedBatch]
}

func newRig(t *testing.T, partitions int, opts ...kafkatest.Option) *rig {
	t.Helper()
	if partitions > 0 {
		opts = append(opts, kafkatest.Topic(topic, partitions))
	}
	r := &rig{t: t, kafka: kafkatest.Start(t, opts...), ledger: newLedger(), next: map[place]int{}}
	r.ledger.watchCommits(t, topic, func() (map[int]int64, error) { return r.kafka.Committed(group, topic), nil })
	return r
}

// config returns a fast configuration. Only the timeouts after which a member or a broker counts as
// dead are long enough for a slow machine.
func config(brokers []string, topics ...string) kafkaconsumer.Config {
	return kafkaconsumer.Config{
		Brokers: brokers, Topics: topics, GroupID: group,
		Decoder:        envelope.DecoderConfig{Type: "order.placed", ID: envelope.KafkaCoordinates()},
		CommitInterval: 10 * time.Millisecond, SessionTimeout: 30 * time.Second, HeartbeatInterval: 50 * time.Millisecond,
		RebalanceTimeout: time.Minute, DrainTimeout: 5 * time.Second,
		WatchInterval: 100 * time.Millisecond,
		FetchMaxWait:  100 * time.Millisecond, RequestTimeout: 10 * time.Second, DialTimeout: 10 * time.Second,
	}
}

// consumer makes a consumer that is stopped when the test ends.
func (r *rig) consumer(change ...func(*kafkaconsumer.Config)) *kafkaconsumer.Consumer {
	r.t.Helper()
	return consumer(r.t, config(r.kafka.Brokers(), topic), r.ledger, change...)
}

func consumer(
	t *testing.T, cfg kafkaconsumer.Config, acceptor kafkaconsumer.Acceptor, change ...func(*kafkaconsumer.Config),
) *kafkaconsumer.Consumer {
	t.Helper()
	for _, c := range change {
		c(&cfg)
	}
	c, err := kafkaconsumer.New("orders.events", cfg, acceptor, logger(t), nil)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, c) })
	return c
}

func logger(t *testing.T) *zap.Logger { return zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)) }

func (r *rig) start(change ...func(*kafkaconsumer.Config)) *kafkaconsumer.Consumer {
	r.t.Helper()
	c := r.consumer(change...)
	require.NoError(r.t, c.Start(r.t.Context()))
	return c
}

func stop(t *testing.T, c *kafkaconsumer.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Stop(ctx))
	require.Equal(t, kafkaconsumer.StateStopped, c.State())
}

// produce writes n more records to each of the partitions.
func (r *rig) produce(n int, partitions ...int) {
	r.t.Helper()
	r.produceTo(topic, n, partitions...)
}

func (r *rig) produceTo(topic string, n int, partitions ...int) {
	r.t.Helper()
	var records []kafkatest.Record
	for range n {
		for _, p := range partitions {
			at := place{topic, p}
			records = append(records, kafkatest.Record{Partition: p, Key: fmt.Appendf(nil, "k%d", p),
				Value: fmt.Appendf(nil, "%s/%d/%d", topic, p, r.next[at])})
			r.next[at]++
		}
	}
	require.NoError(r.t, r.kafka.Produce(topic, records...))
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, what)
}

// awaitAll waits until everything produced to the topic is accepted and
// committed.
func (r *rig) awaitAll() {
	r.t.Helper()
	r.awaitTopic(topic)
}

func (r *rig) awaitTopic(topic string) {
	r.t.Helper()
	eventually(r.t, "all accepted and committed", func() bool {
		committed := r.kafka.Committed(group, topic)
		for at, n := range r.next {
			if at.topic == topic && committed[at.partition] != int64(n) {
				return false
			}
		}
		return true
	})
	total := 0
	for at, n := range r.next {
		if at.topic == topic {
			total += n
		}
	}
	require.Equal(r.t, total, r.ledger.accepted(topic))
}

func (r *rig) committed(partition int) int64 { return r.kafka.Committed(group, topic)[partition] }

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	return inboxtest.Receive(t, from, "a signal")
}
