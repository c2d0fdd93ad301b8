package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// copying is an inbox that publishes copies of what it gives up.
type copying struct {
	*rig
	db *gorm.DB
	ib *inbox.Inbox
	// gate, if not nil, is what the handler waits for before it fails.
	gate chan struct{}
}

func onCopying(t *testing.T, test func(t *testing.T, c *copying), opts ...kafkatest.Option) {
	t.Helper()
	gate := make(chan struct{})
	close(gate)
	onGated(t, func() chan struct{} { return gate }, test, opts...)
}

// onGated has handlers wait for a gate, so that a test can break the topic before anything is published.
func onGated(
	t *testing.T, gate func() chan struct{}, test func(t *testing.T, c *copying), opts ...kafkatest.Option,
) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		c := &copying{rig: &rig{t: t, kafka: kafkatest.Start(t, append(opts, kafkatest.Topic(topic, 2))...),
			next: map[place]int{}}, db: d.DB, gate: gate()}
		c.ib = c.begin(d.DB)
		test(t, c)
	})
}

// begin starts an inbox whose handler always fails.
func (c *copying) begin(db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	c.t.Helper()
	cfg := config(c.kafka.Brokers(), topic)
	cfg.PublishPoisoned, cfg.DeadLetterTopic, cfg.Decoder.TypeHeader = true, letters, "MessageType"
	fail := func(ctx context.Context, _ inboxtest.Bytes) error {
		select {
		case <-c.gate:
		case <-ctx.Done():
		}
		return errors.New("no stock")
	}
	opts = append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries, o.Acceptor.Unrouted, o.Logger = 1, acceptor.UnroutedReject, logger(c.t)
	}), inbox.Channel("orders.events", inbox.Kafka(cfg),
		inbox.On("order.placed", inbox.Func("fulfil", fail, handler.LegacyKeys("fill"))))}, opts...)
	ib := inboxtest.New(c.t, db, opts...)
	inboxtest.Start(c.t, ib)
	return ib
}

// await waits until the topic has n copies and each row is marked, and returns the copies.
func (c *copying) await(n int) []*kgo.Record {
	c.t.Helper()
	client := c.client()
	eventually(c.t, "the rows are marked", func() bool {
		var all, left int64
		for model, parked := range map[any]string{&models.HandlerStatus{}: "is_poisoned", &models.RejectedMessage{}: "true"} {
			var rows, unmarked int64 // counted in this order: rows that come in between are unmarked
			require.NoError(c.t, c.db.Model(model).Where(parked).Count(&rows).Error)
			require.NoError(c.t, c.db.Model(model).Where(parked).Where("published_at IS NULL").Count(&unmarked).Error)
			all, left = all+rows, left+unmarked
		}
		return left == 0 && all >= int64(n)
	})
	return read(c.t, client, letters)
}

func headersOf(r *kgo.Record) map[string]string {
	all := map[string]string{}
	for _, h := range r.Headers {
		all[h.Key] = string(h.Value)
	}
	return all
}

// Contract 7.9.
func TestPoisonedCopyHasErrorAttemptsAndOrigin(t *testing.T) {
	onCopying(t, func(t *testing.T, c *copying) {
		sent := kafkatest.Record{Partition: 1, Key: []byte("k"), Value: []byte("v"),
			Timestamp: time.UnixMilli(1_700_000_000_123), Headers: []kafkatest.Header{{Key: "own", Value: []byte("h")}}}
		require.NoError(t, c.kafka.Produce(topic, sent))
		copies := c.await(1)
		require.Len(t, copies, 1)
		require.Equal(t, "k", string(copies[0].Key))
		require.Equal(t, "v", string(copies[0].Value))
		require.Equal(t, int32(1), copies[0].Partition)
		require.WithinDuration(t, time.Now(), copies[0].Timestamp, time.Hour,
			"a topic may delete, or refuse, records with old timestamps")
		var m models.Message
		require.NoError(t, c.db.First(&m).Error)
		require.Equal(t, map[string]string{"own": "h", kafkaconsumer.HeaderTopic: topic, kafkaconsumer.HeaderPartition: "1",
			kafkaconsumer.HeaderOffset: "0", kafkaconsumer.HeaderTimestamp: "1700000000123",
			kafkaconsumer.HeaderChannel: "orders.events", kafkaconsumer.HeaderGroup: group,
			kafkaconsumer.HeaderReason: "no stock", "inbox-handler": "fulfil",
			"inbox-attempts": "1", "inbox-message-id": m.ID,
			"inbox-message-type": "order.placed"}, headersOf(copies[0]))

		o, err := c.ib.Ops()
		require.NoError(t, err)
		status := inboxtest.Status(t, c.ib, m.ID, "fulfil")
		require.NoError(t, o.Retry(t.Context(), ops.Actor("test"), ops.Ref{StatusID: status.ID}))
		eventually(t, "it is poisoned and published again", func() bool {
			again := inboxtest.Status(t, c.ib, m.ID, "fulfil")
			return again.IsPoisoned && again.PublishedAt != nil && again.RequeuedCount == 1
		})
		require.Len(t, c.await(1), 2)
	}, kafkatest.Topic(letters, 2))
}

func TestRejectedRecordsArePublishedUnchanged(t *testing.T) {
	onCopying(t, func(t *testing.T, c *copying) {
		require.NoError(t, c.kafka.Produce(topic,
			kafkatest.Record{Value: []byte("unrouted"),
				Headers: []kafkatest.Header{{Key: "MessageType", Value: []byte("x")}}},
			kafkatest.Record{Value: []byte("bad"), Key: []byte("k"),
				Headers: []kafkatest.Header{{Key: "ce_specversion", Value: []byte("9")}}}))
		copies := c.await(2)
		require.Len(t, copies, 2)
		require.Equal(t, "unrouted", string(copies[0].Value))
		require.Contains(t, headersOf(copies[0])[kafkaconsumer.HeaderReason], "no handler")
		require.Equal(t, "x", headersOf(copies[0])["MessageType"])
		require.Equal(t, "bad", string(copies[1].Value))
		require.Contains(t, headersOf(copies[1])[kafkaconsumer.HeaderReason], "specversion")
		require.NotContains(t, headersOf(copies[1]), "inbox-handler")
	}, kafkatest.Topic(letters, 1))
}

func TestCopyOfAnEventHasItsAttributesAsHeadersOnce(t *testing.T) {
	onCopying(t, func(t *testing.T, c *copying) {
		const event = `{"specversion":"1.0","id":"e1","type":"order.placed","source":"/shop","subject":"s","datacontenttype":"text/plain","data":"v"}`
		require.NoError(t, c.kafka.Produce(topic, kafkatest.Record{Value: []byte(event),
			Headers: []kafkatest.Header{{Key: "content-type", Value: []byte("application/cloudevents+json")},
				{Key: "ce_specversion", Value: []byte("0.3")}, {Key: "ce_id", Value: []byte("other")}}}))
		copies := c.await(1)
		require.Equal(t, "v", string(copies[0].Value))
		got := headersOf(copies[0])
		names := map[string]int{}
		for _, h := range copies[0].Headers {
			names[h.Key]++
			require.Equal(t, 1, names[h.Key], h.Key)
		}
		for name, value := range map[string]string{"ce_specversion": "1.0", "ce_id": "e1", "ce_type": "order.placed",
			"ce_source": "/shop", "ce_subject": "s", "content-type": "text/plain"} {
			require.Equal(t, value, got[name], name)
		}
	}, kafkatest.Topic(letters, 1))
}

// Contract 7.9 and 15.
func TestCopiesLeaveOpenedOrNameTheirKey(t *testing.T) {
	onGated(t, shut, func(t *testing.T, c *copying) {
		require.NoError(t, c.ib.Stop(t.Context()))
		box := inboxtest.NewBox("k1")
		c.begin(c.db, box.Option())
		named := func(name string) []kafkatest.Header {
			return []kafkatest.Header{{Key: "MessageId", Value: []byte(name)}, {Key: "own", Value: []byte("h")}}
		}
		require.NoError(t, c.kafka.Produce(topic, kafkatest.Record{Value: []byte("plain"), Headers: named("opens")},
			kafkatest.Record{Value: []byte("plain"), Headers: named("never")},
			kafkatest.Record{Value: []byte("unrouted"), Headers: append(named("unrouted"),
				kafkatest.Header{Key: "MessageType", Value: []byte("x")})}))
		var down atomic.Bool
		down.Store(true)
		box.Fail(nil, func(of handler.Identity, keyID string) error {
			switch {
			case strings.HasPrefix(of.ID, topic+"/0/1@"):
				return handler.Poison(fmt.Errorf("no key %q", keyID))
			case of.Type == "" && down.Load(): // the rejected record
				return errors.New("key server is down")
			}
			return nil
		})
		close(c.gate)
		eventually(t, "the poisoned ones are published", func() bool {
			var published int64
			require.NoError(t, c.db.Model(&models.HandlerStatus{}).Where("published_at IS NOT NULL").Count(&published).Error)
			return published == 2
		})
		down.Store(false)
		values := map[string]string{}
		for _, copied := range c.await(3) {
			headers := headersOf(copied)
			require.Equal(t, "h", headers["own"])
			name := headers["MessageId"]
			values[name] = headers["inbox-sealed"] + ":" + string(copied.Value)
		}
		require.Equal(t, ":plain", values["opens"])
		require.Equal(t, ":unrouted", values["unrouted"])
		require.Contains(t, values["never"], "k1:")
		require.NotContains(t, values["never"], "plain")
	}, kafkatest.Topic(letters, 1))
}

func TestCopiesWaitForTheirTopicAndHealthReportsIt(t *testing.T) {
	onCopying(t, func(t *testing.T, c *copying) {
		c.produce(3, 0)
		eventually(t, "health names the topic", func() bool {
			for _, consumer := range c.ib.Health().Consumers {
				if consumer.CopyErr != nil {
					require.ErrorContains(t, consumer.CopyErr, fmt.Sprintf("dead-letter topic %q does not exist", letters))
					return true
				}
			}
			return false
		})
		require.Error(t, c.ib.Health().Degraded())
		require.NoError(t, c.kafka.CreateTopic(letters, 1))
		require.Len(t, c.await(3), 3)
		eventually(t, "health recovers", func() bool { return c.ib.Health().Degraded() == nil })
	})
}

func shut() chan struct{} { return make(chan struct{}) }

func TestCopyWithLostResponseIsPublishedAgain(t *testing.T) {
	onGated(t, shut, func(t *testing.T, c *copying) {
		c.produce(1, 0)
		lost := c.kafka.FailNext(kmsg.Produce, answerLost, 1)
		close(c.gate)
		copies := c.await(1)
		require.Equal(t, 1, lost.Hits())
		require.Len(t, copies, 2, "the broker has written it, and its response was lost")
		require.Equal(t, topic+"/0/0", string(copies[1].Value))
	}, kafkatest.Topic(letters, 1))
}

func TestCopyRefusedByTheTopicIsPublishedWithoutContent(t *testing.T) {
	onGated(t, shut, func(t *testing.T, c *copying) {
		require.NoError(t, c.kafka.Produce(topic, kafkatest.Record{Key: []byte("k"), Value: []byte("large"),
			Headers: []kafkatest.Header{{Key: "own", Value: []byte("h")}}}))
		c.kafka.FailNext(kmsg.Produce, 10, 1) // MESSAGE_TOO_LARGE
		close(c.gate)
		copies := c.await(1)
		require.Len(t, copies, 1)
		require.Nil(t, copies[0].Value)
		require.Equal(t, "k", string(copies[0].Key), "a compacted topic requires one")
		got := headersOf(copies[0])
		require.NotEmpty(t, got["inbox-omitted"])
		require.Equal(t, "0", got[kafkaconsumer.HeaderOffset])
		require.NotContains(t, got, "own")
	}, kafkatest.Topic(letters, 1))
}

func TestFailingCopiesDoNotBlockOthers(t *testing.T) {
	onGated(t, shut, func(t *testing.T, c *copying) {
		var released atomic.Bool
		c.produce(6, 0)
		c.produce(1, 1)
		c.refuse(func(partition int32) bool { return partition == 0 && !released.Load() })
		close(c.gate)
		eventually(t, "the copy for the other partition is there", func() bool {
			var published int64
			require.NoError(t, c.db.Model(&models.HandlerStatus{}).Where("published_at IS NOT NULL").Count(&published).Error)
			return published == 1
		})
		released.Store(true)
		require.Len(t, c.await(7), 7)
	}, kafkatest.Topic(letters, 2))
}

// refuse breaks the connections of what is produced to partitions of the dead-letter topic.
func (c *copying) refuse(partition func(int32) bool) {
	c.kafka.Cluster().ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.kafka.Cluster().KeepControl()
		for _, t := range request.(*kmsg.ProduceRequest).Topics {
			if t.Topic == letters && partition(t.Partitions[0].Partition) {
				return nil, errors.New("refused on purpose"), true
			}
		}
		return nil, nil, false
	})
}

func TestStopEndsPublishingAfterTheCurrentCopy(t *testing.T) {
	onGated(t, shut, func(t *testing.T, c *copying) {
		c.produce(5, 0)
		var asked atomic.Int64
		c.refuse(func(int32) bool { asked.Add(1); return true })
		close(c.gate)
		eventually(t, "publishing fails", func() bool { return asked.Load() > 0 })
		require.NoError(t, c.ib.Stop(t.Context()))
		before := asked.Load()
		require.Never(t, func() bool { return asked.Load() > before }, 300*time.Millisecond, 50*time.Millisecond,
			"nothing is published after a stop")
	}, kafkatest.Topic(letters, 1))
}

func TestOnlyOneProcessPublishesCopies(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		c := &copying{rig: &rig{t: t, kafka: kafkatest.Start(t, kafkatest.Topic(topic, 2), kafkatest.Topic(letters, 1)),
			next: map[place]int{}}, db: d.DB, gate: shut()}
		close(c.gate)
		c.begin(d.DB)
		c.begin(d.Another(t))
		c.produce(30, 0, 1)
		require.Len(t, c.await(60), 60)
	})
}

// TestCrashedPublisherIsReplacedAfterWorkerTimeout proves contract 7.9: the lease of a
// process that publishes is no longer than the silence after which a worker is dead.
func TestCrashedPublisherIsReplacedAfterWorkerTimeout(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		c := &copying{rig: &rig{t: t, kafka: kafkatest.Start(t, kafkatest.Topic(topic, 1), kafkatest.Topic(letters, 1)),
			next: map[place]int{}}, db: d.DB, gate: shut()}
		timeout := time.Minute
		ib := c.begin(d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = timeout }))
		left := make(chan float64, 1)
		c.refuse(func(int32) bool { // it is asked while the lease is held
			var seconds float64
			require.NoError(t, d.DB.Raw(`SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM inbox_locks
				WHERE name = 'copies:orders.events'`).Scan(&seconds).Error)
			select {
			case left <- seconds:
			default:
			}
			return false
		})
		c.produce(1, 0)
		close(c.gate)
		c.await(1)
		seconds := inboxtest.Receive(t, left, "a copy")
		require.Greater(t, seconds, 0.0)
		require.LessOrEqual(t, seconds, timeout.Seconds())
		require.NoError(t, ib.Stop(t.Context()))
	})
}
