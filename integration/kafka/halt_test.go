package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// application returns a started Fx application with one inbox on the topic.
func application(
	t *testing.T, d *inboxtest.Database, k *kafkatest.Kafka, opts ...inbox.Option,
) (app *fx.App, ib *inbox.Inbox, logs *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	app = fx.New(fx.NopLogger, fx.Supply(zap.New(core)), fx.Provide(func() *gorm.DB { return d.DB }), fx.Populate(&ib),
		inbox.Module("", append([]inbox.Option{inboxtest.Brisk()}, opts...)...))
	require.NoError(t, app.Err())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, app.Start(ctx))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, app.Stop(ctx))
	})
	return app, ib, logs
}

// plain declares a channel for records with their ID in a header.
func plain(k *kafkatest.Kafka, change ...func(*kafkaconsumer.Config)) inbox.Option {
	cfg := config(k.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"}
	for _, c := range change {
		c(&cfg)
	}
	return inbox.Channel("c", inbox.Kafka(cfg), inbox.On("t", inboxtest.Do("h", inboxtest.Nothing)))
}

// TestShutdownOnHaltEndsTheApplicationOnceWithAnError proves contract 7.4.
func TestShutdownOnHaltEndsTheApplicationOnceWithAnError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(1, "")))
		halts := make(chan int, 10)
		app, _, logs := application(t, d, k, inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.BadRecords = acceptor.BadRecordHalt
			o.ShutdownOnHalt = true
		}),
			plain(k, func(c *kafkaconsumer.Config) {
				c.OnHalt = func(_ string, partition int, _ error) {
					halts <- partition
					panic("not our trouble")
				}
			}))
		require.ElementsMatch(t, []int{0, 1}, []int{receive(t, halts), receive(t, halts)}, "the user's hook is called, too")
		signal := receive(t, app.Wait())
		require.Equal(t, 1, signal.ExitCode)
		require.Equal(t, 1, logs.FilterMessageSnippet("shutting the application down").Len(), "once")
		eventually(t, "what is before is committed", func() bool { return k.Committed(group, topic)[0] == 1 })
	})
}

// TestHaltKeepsTheApplicationAliveAndVisibleByDefault proves contract 7.4.
func TestHaltKeepsTheApplicationAliveAndVisibleByDefault(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "2"), record(1, "3")))
		app, ib, _ := application(t, d, k, inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.BadRecords = acceptor.BadRecordHalt
		}), plain(k))
		eventually(t, "halted", func() bool { return len(ib.Health().Consumers[0].Halted()) == 1 })
		require.ErrorContains(t, ib.Health().Degraded(), "orders/0 is halted before offset 1")
		operator, err := ops.New(d.Another(t))
		require.NoError(t, err)
		eventually(t, "operators see it on the tables alone", func() bool {
			overview, err := operator.Overview(t.Context())
			return err == nil && len(overview.Reasons) == 1 && overview.Reasons[0].Code == health.Halted &&
				overview.Reasons[0].Unhealthy() &&
				strings.Contains(overview.Reasons[0].Detail, "orders/0 is halted before offset 1")
		})
		require.NoError(t, k.Produce(topic, record(1, "4")))
		eventually(t, "the other partition goes on", func() bool {
			committed := k.Committed(group, topic)
			return committed[0] == 1 && committed[1] == 2
		})
		eventually(t, "and its handlers", func() bool {
			return inboxtest.CountMessages(t, ib) == 3 && inboxtest.AllCompleted(t, ib)
		})
		require.EqualValues(t, 1, ib.Counters().Rejected)
		select {
		case <-app.Wait():
			require.FailNow(t, "the application ended")
		default:
		}
	})
}

// TestShutdownOnHaltCoversOffsetOutOfRange proves contract 7.5: every cause of a halt ends
// the application.
func TestShutdownOnHaltCoversOffsetOutOfRange(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "1")))
		first := inboxtest.New(t, d.DB, inboxtest.Brisk(), plain(k))
		require.NoError(t, first.Start(t.Context()))
		eventually(t, "committed", func() bool { return k.Committed(group, topic)[0] == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, first.Stop(ctx))
		require.NoError(t, k.Produce(topic, record(0, "2"), record(0, "3")))
		require.NoError(t, k.DeleteRecords(topic, 0, 2))
		// Clear the stored name of the inbox, because this application has another name.
		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = '' WHERE "key" = 'name'`)
		app, _, _ := application(t, d, k, inbox.Configure(func(o *inbox.Options) { o.ShutdownOnHalt = true }), plain(k))
		require.Equal(t, 1, receive(t, app.Wait()).ExitCode)
	})
}

// TestInboxPublishesBadRecordsAndContinues proves contract 7.4 with a whole inbox: a bad record is
// published, counted and reported.
func TestInboxPublishesBadRecordsAndContinues(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1), kafkatest.Topic(letters, 1))
		r := &rig{t: t, kafka: k}
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "2")))
		forwarded := make(chan envelope.Record, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
		}),
			plain(k, func(c *kafkaconsumer.Config) {
				c.DeadLetterTopic, c.OnDeadLetter = letters, func(record envelope.Record, _ error) { forwarded <- record }
			}))
		inboxtest.Start(t, ib)
		require.EqualValues(t, 1, receive(t, forwarded).Offset)
		eventually(t, "all committed", func() bool { return k.Committed(group, topic)[0] == 3 })
		require.Equal(t, 2, inboxtest.CountMessages(t, ib))
		published := read(t, r.client(), letters)
		require.Equal(t, []string{"0/1"}, lettersOf(published))
		require.Equal(t, "c", header(published[0], kafkaconsumer.HeaderChannel))
		require.Contains(t, header(published[0], kafkaconsumer.HeaderReason), "message ID is missing")
		counted := ib.Counters()
		require.Equal(t, []int64{1, 0, 2}, []int64{counted.DeadLettered, counted.Rejected, counted.Accepted})
		var rejected int64
		require.NoError(t, ib.DB().Table(ib.Tables().RejectedMessages()).Count(&rejected).Error)
		require.Zero(t, rejected)
	})
}

// TestNextReleaseAcceptsRejectedRecords proves contract 7.4 and 11.1: a new release accepts
// what the last one rejected, with the channel's own decoder and handlers.
func TestNextReleaseAcceptsRejectedRecords(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		lost := kafkatest.Record{Key: []byte("k1"), Value: []byte("paid"),
			Headers: []kafkatest.Header{{Key: "Order", Value: []byte("7")}}, Timestamp: time.UnixMilli(1_700_000_000_123)}
		require.NoError(t, k.Produce(topic, lost))
		last := inboxtest.New(t, d.DB, inboxtest.Brisk(), plain(k))
		require.NoError(t, last.Start(t.Context()))
		eventually(t, "rejected and committed", func() bool { return k.Committed(group, topic)[0] == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, last.Stop(ctx))
		var row models.RejectedMessage
		require.NoError(t, last.DB().Clauses(last.Tables()).Take(&row).Error)
		_, err := last.AcceptRejected(t.Context(), row.ID)
		var still *handler.StillBadError
		require.ErrorAs(t, err, &still)
		require.ErrorIs(t, err, envelope.ErrMissingID)

		ran := make(chan inboxtest.Bytes, 10)
		cfg := config(k.Brokers(), topic)
		cfg.Decoder = envelope.DecoderConfig{Type: "t", ID: envelope.HeaderID("Order")}
		next := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Channel("c", inbox.Kafka(cfg),
			inbox.On("t", inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m; return nil }))))
		inboxtest.Start(t, next)
		results, err := next.AcceptRejected(t.Context(), row.ID)
		require.NoError(t, err)
		require.Equal(t, []acceptor.Result{{MessageID: "7", Outcome: handler.OutcomeAccepted, Handlers: 1}}, results)
		m := receive(t, ran)
		require.Equal(t, "paid", string(m.Payload))
		at := m.Properties.Kafka
		require.Equal(t, []any{topic, 0, int64(0), int64(1_700_000_000_123), "k1"},
			[]any{at.Topic, at.Partition, at.Offset, at.Timestamp.UnixMilli(), string(at.Key)})
		_, err = next.AcceptRejected(t.Context(), row.ID)
		require.ErrorIs(t, err, acceptor.ErrRejectedNotFound)

		// The record itself is consumed again, as after a reset of the group's offset.
		require.NoError(t, k.Produce(topic, lost))
		eventually(t, "a duplicate", func() bool { return next.Counters().Duplicates == 1 })
	})
}

// TestGivenUpDirectRecordIsPublishedUnderDeadLetter proves contract 7.4 and 7.6: a
// record that a Direct channel's handler gives up is published the same way.
func TestGivenUpDirectRecordIsPublishedUnderDeadLetter(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := &directRig{rig: newDead(t, 1, kafkatest.Topic(letters, 1)), database: d, calls: map[string][]call{},
			running: map[place]int{}}
		r.send(t, 0, "1", "poisons", "3")
		fault := r.kafka.FailNext(kmsg.Produce, answerLost, 1)
		ib, _ := r.run(t, settings{
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
				o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
			})},
			config: []func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) { c.DeadLetterTopic = letters }},
		}, r.handler("h", func(_ context.Context, m inboxtest.Bytes) error {
			if m.ID == "poisons" {
				return handler.Poison(errBoom)
			}
			return nil
		}))
		r.awaitCommitted(t)
		require.Equal(t, 1, fault.Hits())
		published := read(t, r.client(), letters)
		require.Equal(t, []string{"0/1", "0/1"}, lettersOf(published), "its answer was lost once")
		require.Contains(t, header(published[0], kafkaconsumer.HeaderReason), `handler "h" gave up message "poisons"`)
		require.Equal(t, []int{1}, r.attempts("h", 0, 1), "publishing is retried, the handler is not")
		require.Empty(t, r.rejected(t, ib))
		require.EqualValues(t, 1, ib.Counters().DeadLettered)
	})
}
