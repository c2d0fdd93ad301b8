package kafka

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

var errBoom = errors.New("boom")

// TestDirectKeepsPartitionOrderWhileHandlersFail proves contract 7.6: each partition keeps its
// order under failures, a failed handler is retried alone, and the offset follows the handlers. The
// rig's ledger checks order and commits.
func TestDirectKeepsPartitionOrderWhileHandlersFail(t *testing.T) {
	const each = 40
	onDirect(t, 4, func(t *testing.T, r *directRig) {
		inboxtest.Exec(t, r.database.DB, "CREATE TABLE effects (message_id varchar(200) PRIMARY KEY)")
		r.produce(each, 0, 1, 2, 3)
		ib, _ := r.run(t, settings{},
			r.handler("first", func(_ context.Context, m inboxtest.Bytes) error {
				if m.Properties.Kafka.Offset%3 == 0 && m.Attempt < 3 {
					return errBoom
				}
				return nil
			}),
			inbox.Tx("writes", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if err := tx.Exec("INSERT INTO effects (message_id) VALUES (?)", m.ID).Error; err != nil {
					return err
				}
				if m.Properties.Kafka.Offset%5 == 0 && m.Attempt == 1 {
					return errBoom // the insert is rolled back, or the next attempt would collide
				}
				return nil
			}),
			r.handler("slowest", func(ctx context.Context, m inboxtest.Bytes) error {
				if m.Properties.Kafka.Offset%4 == 0 && m.Attempt == 1 {
					return handler.RetryAfter(20*time.Millisecond, errBoom)
				}
				return r.done(ctx, m)
			}))
		r.awaitCommitted(t)
		require.Equal(t, 4*each, r.ledger.deliveries(topic))
		var effects int64
		require.NoError(t, r.database.DB.Table("effects").Count(&effects).Error)
		require.EqualValues(t, 4*each, effects)
		for p := range 4 {
			for offset := range int64(each) {
				want := []int{1}
				if offset%3 == 0 {
					want = []int{1, 2, 3}
				}
				require.Equal(t, want, r.attempts("first", p, offset), "partition %d, offset %d", p, offset)
			}
		}
		require.Zero(t, inboxtest.CountMessages(t, ib), "nothing is stored")
		require.Empty(t, inboxtest.Statuses(t, ib))
		require.False(t, r.beside)
		counted := ib.Counters()
		require.EqualValues(t, 4*each*3, counted.Processed)
		require.EqualValues(t, 4*(14*2+8+10), counted.Failed)
		require.Zero(t, counted.Accepted)
		require.Zero(t, counted.Poisoned)
	})
}

// TestDirectRunsPartitionsConcurrentlyUpToTheBound proves contract 7.6, and 9 for a channel's own bound.
func TestDirectRunsPartitionsConcurrentlyUpToTheBound(t *testing.T) {
	atOnce := func(n int) []inbox.Option {
		return []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.PartitionConcurrency = n })}
	}
	for name, set := range map[string]settings{
		"of the inbox": {options: atOnce(3)},
		"of the channel": {options: atOnce(1), channel: []inbox.ChannelOption{
			inbox.ConfigureChannel(func(o *inbox.ChannelOptions) { o.PartitionConcurrency = 3 })}},
	} {
		t.Run(name, func(t *testing.T) {
			onDirect(t, 5, func(t *testing.T, r *directRig) {
				r.produce(2, 0, 1, 2, 3, 4)
				g := newGate()
				r.run(t, set, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
					if err := g.wait(ctx); err != nil {
						return err
					}
					return r.done(ctx, m)
				}))
				for range 3 {
					receive(t, g.entered)
				}
				close(g.open)
				r.awaitCommitted(t)
				require.Equal(t, 3, r.most)
				require.False(t, r.beside)
			})
		})
	}
}

// TestDirectChannelOverridesMaxRetries proves contract 9.
func TestDirectChannelOverridesMaxRetries(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.produce(1, 0)
		ib, _ := r.run(t, settings{channel: []inbox.ChannelOption{
			inbox.ConfigureChannel(func(o *inbox.ChannelOptions) { o.MaxRetries = 2 })}},
			r.handler("bad", func(context.Context, inboxtest.Bytes) error { return errBoom }), r.handler("good", r.done))
		r.awaitCommitted(t)
		rows := r.rejected(t, ib)
		require.Len(t, rows, 1)
		require.Contains(t, rows[0].Reason, "after 2 attempts")
	})
}

func TestDirectRetryBlocksNoOtherPartition(t *testing.T) {
	onDirect(t, 3, func(t *testing.T, r *directRig) {
		r.produce(10, 0, 1, 2)
		patient := func(c *kafkaconsumer.Config) { c.RebalanceTimeout, c.DrainTimeout = 20*time.Minute, 10*time.Minute }
		_, end := r.run(t, settings{config: []func(*kafkaconsumer.Config){patient},
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.PartitionConcurrency = 1 })}},
			r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
				if m.Properties.Kafka.Partition == 1 && m.Properties.Kafka.Offset == 4 {
					return handler.RetryAfter(time.Hour, errBoom)
				}
				return r.done(ctx, m)
			}))
		eventually(t, "the others are done", func() bool {
			return r.committed(0) == 10 && r.committed(1) == 4 && r.committed(2) == 10
		})
		began := time.Now()
		end()
		require.Less(t, time.Since(began), patience/6,
			"a stop does not wait for a retry, for half of the time it has at most")
		require.Equal(t, int64(4), r.committed(1))
	})
}

func TestDirectHoldsNoMoreInMemoryThanItsBudget(t *testing.T) {
	onDirect(t, 4, func(t *testing.T, r *directRig) {
		const each, size = 40, 10_000
		producer, err := kgo.NewClient(append(r.kafka.ClientOptions(), kgo.ProducerBatchMaxBytes(size*3/2),
			kgo.ProducerBatchCompression(kgo.NoCompression()))...)
		require.NoError(t, err)
		t.Cleanup(producer.Close)
		for p := range 4 {
			records := make([]*kgo.Record, each)
			for i := range records {
				records[i] = &kgo.Record{Topic: topic, Partition: int32(p), Value: make([]byte, size)}
			}
			require.NoError(t, producer.ProduceSync(t.Context(), records...).FirstErr())
			r.next[place{topic, p}] = each
		}
		const limit, response = 60_000, 30_000
		g := newGate()
		ib, _ := r.run(t, settings{config: []func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) {
			c.BufferBytes, c.FetchMaxBytes, c.BatchBytes = limit, response, response
		}}}, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if err := g.wait(ctx); err != nil {
				return err
			}
			return r.done(ctx, m)
		}))
		receive(t, g.entered)
		full := func() bool { return ib.Health().Consumers[0].BufferedBytes >= limit }
		eventually(t, "the budget is used up", full)
		require.Never(t, func() bool {
			return ib.Health().Consumers[0].BufferedBytes > limit+4*response
		}, 300*time.Millisecond, 10*time.Millisecond)
		close(g.open)
		r.awaitCommitted(t)
		require.Equal(t, 4*each, r.ledger.deliveries(topic))
	})
}

// TestDirectMessageWithoutIDGetsItsCoordinates proves contract 4.4: nothing is deduplicated, so a
// missing ID is no error.
func TestDirectMessageWithoutIDGetsItsCoordinates(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "", "same", "same")
		ib, _ := r.run(t, settings{}, r.handler("h", r.done))
		r.awaitCommitted(t)
		calls := r.of("h")
		require.Len(t, calls, 3, "a resent message is handled again")
		require.Contains(t, calls[0].id, topic+"/0/0@")
		require.Equal(t, []string{"same", "same"}, []string{calls[1].id, calls[2].id})
		require.Empty(t, r.rejected(t, ib))
	})
}

// TestDirectHandlersGetCoordinatesAndASession checks that a handler gets the same
// message as from the inbox.
func TestDirectHandlersGetCoordinatesAndASession(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		inboxtest.Exec(t, r.database.DB, "CREATE TABLE effects (message_id varchar(200) PRIMARY KEY)")
		r.ledger.sparse = true // this test checks the table instead
		var order []string
		note := func(name string) handler.Middleware {
			return func(ctx context.Context, c handler.Call, next func(context.Context) error) error {
				order = append(order, name+" "+c.HandlerKey)
				return next(ctx)
			}
		}
		got := make(chan handler.Message[map[string]int], 1)
		attempts := make(chan handler.AttemptEvent, 10)
		hooks := handler.Hooks{OnAttempt: func(_ context.Context, e handler.AttemptEvent) { attempts <- e }}
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Middleware = append(o.Middleware, note("inbox's"))
			o.Hooks = hooks
		})}},
			inbox.Func("h", func(ctx context.Context, m handler.Message[map[string]int]) error {
				got <- m
				return handler.DB(ctx).Exec("INSERT INTO effects (message_id) VALUES (?)", m.ID).Error
			}, handler.Use(note("own"))))
		require.NoError(t, r.kafka.Produce(topic, kafkatest.Record{Key: []byte("key"), Value: []byte(`{"n":7}`),
			Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("m1")}, {Key: "x", Value: []byte("y")}}}))
		m := receive(t, got)
		require.Equal(t, 7, m.Payload["n"])
		require.Equal(t, []any{"m1", "t", "kafka:" + topic, "kafka", "h", 1},
			[]any{m.ID, m.Type, m.Source, m.Transport, m.HandlerKey, m.Attempt})
		require.Equal(t, []byte("key"), m.OrderingKey)
		value, _ := m.Properties.Header("x")
		require.Equal(t, "y", string(value))
		require.WithinDuration(t, time.Now(), m.ReceivedAt, time.Minute)
		e := receive(t, attempts)
		require.Equal(t, []any{"m1", "h", "t", 1, handler.AttemptCompleted, nil},
			[]any{e.MessageID, e.HandlerKey, e.Type, e.Attempt, e.Outcome, e.Err})
		require.True(t, e.NextAttemptAt.IsZero())
		eventually(t, "committed", func() bool { return r.committed(0) == 1 })
		require.Equal(t, []string{"inbox's h", "own h"}, order)
		var effects int64
		require.NoError(t, ib.DB().Table("effects").Count(&effects).Error)
		require.EqualValues(t, 1, effects)
	})
}

// TestAcceptToADirectChannelIsATypedError checks that Direct channels accept only messages of their
// transport.
func TestAcceptToADirectChannelIsATypedError(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		ib := r.inbox(t, settings{}, r.handler("h", r.done))
		results, err := ib.Accept(t.Context(), inboxtest.Message("1"))
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "not_stored", invalid.Reason)
		require.ErrorContains(t, err, `channel "c" is delivered directly, without an inbox`)
		require.Equal(t, handler.OutcomeInvalid, results[0].Outcome)
		require.NoError(t, ib.DB().Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message("1"))
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "not_stored", invalid.Reason)
			return nil
		}))
		require.Zero(t, inboxtest.CountMessages(t, ib))
	})
}

// TestPausedSynchronousHandlerHoldsItsPartition proves contract 5.13 and 7.6: a pause
// means the same in every mode, even if it was made by a program that only knows the tables.
func TestPausedSynchronousHandlerHoldsItsPartition(t *testing.T) {
	for name, inline := range map[string][]inbox.InlineOption{"direct": nil, "inline": inlined} {
		t.Run(name, func(t *testing.T) {
			onDirect(t, 2, func(t *testing.T, r *directRig) {
				r.ledger.sparse = true
				handlers := []*inbox.HandlerSpec{r.handler("held", inboxtest.Nothing), r.handler("free", inboxtest.Nothing)}
				with := settings{inline: inline, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
					o.SampleInterval = 50 * time.Millisecond
				})}}
				ib, end := r.run(t, with, handlers...)
				operator, err := ops.New(r.database.Another(t))
				require.NoError(t, err)
				eventually(t, "a worker lists the handler and it is paused", func() bool {
					return operator.Pause(t.Context(), "operator", "held") == nil
				})
				eventually(t, "the pause is obeyed", func() bool {
					return slices.ContainsFunc(ib.Health().Backlog, func(b processor.Backlog) bool {
						return b.HandlerKey == "held" && b.Paused
					})
				})
				r.send(t, 0, "m1", "m2")
				eventually(t, "the other handler has its part", func() bool { return len(r.of("free")) == 1 })
				end()
				require.Empty(t, r.of("held"), "it is paused")
				require.Zero(t, max(r.committed(0), 0), "the record waits for it")

				again, _ := r.run(t, with, handlers...)
				eventually(t, "delivered again", func() bool {
					return again.Counters().Processed+again.Counters().DuplicateSkipped > 0
				})
				require.Empty(t, r.of("held"), "it is paused from the start")
				require.NoError(t, operator.Resume(t.Context(), "operator", "held"))
				r.awaitCommitted(t)
				require.Len(t, r.of("held"), 2, "once for each message")
				require.Zero(t, again.Counters().Failed)
			})
		})
	}
}

// TestChannelTurnedDirectProcessesItsEarlierStatuses checks that a channel can become Direct
// without losing what it had accepted before.
func TestChannelTurnedDirectProcessesItsEarlierStatuses(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		h := r.handler("h", inboxtest.Nothing)
		stored := inboxtest.New(t, r.database.DB, inboxtest.Handlers(h))
		_, err := stored.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "t", ID: "old",
			Properties: handler.Properties{Kafka: &handler.KafkaCoordinates{Topic: "before"}}})
		require.NoError(t, err)
		ib, _ := r.run(t, settings{}, h)
		eventually(t, "processed", func() bool { return ib.Counters().Processed == 1 })
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it is completed")
	})
}

// TestCleanupDoesNotWaitForDirectConsumers proves contract 6.5: a redelivery to a Direct channel
// needs nothing that cleanup deletes.
func TestCleanupDoesNotWaitForDirectConsumers(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.kafka.Stop()
		ib, _ := r.run(t, settings{}, r.handler("h", r.done))
		eventually(t, "the outage shows", func() bool { return ib.Health().Consumers[0].GroupErr != nil })
		require.False(t, ib.Health().Consumers[0].CaughtUp())
		_, err := ib.Cleanup(t.Context())
		require.NoError(t, err)
	})
}

// TestRequirementWarnsOncePerChannelUnlessOptedOut proves contract 7.7.
func TestRequirementWarnsOncePerChannelUnlessOptedOut(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		h := r.handler("h", r.done)
		warned := func(opts ...inbox.Option) int {
			observe, logs := inboxtest.Observe()
			_, end := r.run(t, settings{options: append(opts, observe)}, h)
			end()
			return logs.FilterMessage("inbox: channel consumes without an inbox").Len()
		}
		require.Zero(t, warned())
		require.Equal(t, 1, warned(inbox.Configure(func(o *inbox.Options) {
			o.ConsumeChannelInboxRequirement = inbox.RequirementWarn
		})))
		observe, logs := inboxtest.Observe()
		_, end := r.run(t, settings{
			options: []inbox.Option{observe, inbox.Configure(func(o *inbox.Options) {
				o.ConsumeChannelInboxRequirement = inbox.RequirementWarn
			})},
			channel: []inbox.ChannelOption{inbox.AllowConsumeWithoutInbox()},
		}, h)
		end()
		require.Zero(t, logs.FilterMessage("inbox: channel consumes without an inbox").Len())
	})
}
