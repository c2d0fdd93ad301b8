package kafka

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestGivenUpDirectRecordIsKeptAsRejected proves contract 7.4 and 7.6: after
// MaxRetries, Poison or the handler's own MaxRetries, the record is bad. The other handlers have
// done it, and the partition continues.
func TestGivenUpDirectRecordIsKeptAsRejected(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "fails", "poisons", "own", "panics", "good")
		var events []handler.AttemptEvent
		hooks := handler.Hooks{OnPoisoned: func(_ context.Context, e handler.AttemptEvent) { events = append(events, e) }}
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 3
			o.Hooks = hooks
		})}},
			r.handler("bad", func(_ context.Context, m inboxtest.Bytes) error {
				switch m.ID {
				case "fails":
					return errBoom
				case "poisons":
					return handler.Poison(errBoom)
				case "panics":
					panic("ouch")
				}
				return nil
			}),
			inbox.Func("own", func(_ context.Context, m inboxtest.Bytes) error {
				r.leave(r.enter("own", m))
				if m.ID == "own" {
					return errBoom
				}
				return nil
			}, handler.MaxRetries(2)),
			r.handler("good", r.done))
		r.awaitCommitted(t)
		require.Equal(t, 5, r.ledger.deliveries(topic), "the others have done theirs, once")
		require.Equal(t, []int{1, 2, 3}, r.attempts("bad", 0, 0))
		require.Equal(t, []int{1}, r.attempts("bad", 0, 1))
		require.Equal(t, []int{1, 2}, r.attempts("own", 0, 2))
		require.Equal(t, []int{1, 2, 3}, r.attempts("bad", 0, 3))
		require.Equal(t, []int{1}, r.attempts("bad", 0, 4))
		rows := r.rejected(t, ib)
		require.Len(t, rows, 4)
		for i, want := range []string{`handler "bad" gave up message "fails" after 3 attempts: boom`,
			`handler "bad" gave up message "poisons" after 1 attempts: poison: boom`,
			`handler "own" gave up message "own" after 2 attempts: boom`, "handler panicked: ouch"} {
			require.Contains(t, rows[i].Reason, want)
			require.Equal(t, int64(i), rows[i].Offset)
			require.Equal(t, []byte("x"), rows[i].Value, "the raw record is there")
		}
		require.Len(t, events, 4)
		require.Equal(t, []any{"fails", "bad", 3, handler.AttemptPoisoned},
			[]any{events[0].MessageID, events[0].HandlerKey, events[0].Attempt, events[0].Outcome})
		counted := ib.Counters()
		require.EqualValues(t, []int64{4, 4, 3 + 1 + 2 + 3}, []int64{counted.Rejected, counted.Poisoned, counted.Failed})
	})
}

// TestGivenUpDirectRecordIsPublished proves contract 7.4 for the same record where bad
// records are published.
func TestGivenUpDirectRecordIsPublished(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		require.NoError(t, r.kafka.CreateTopic(letters, 1))
		r.send(t, 0, "good", "bad", "good too")
		r.ledger.sparse = true
		ib, _ := r.run(t, settings{
			config: []func(*kafkaconsumer.Config){func(c *kafkaconsumer.Config) { c.DeadLetterTopic = letters }},
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
				o.Processor.MaxRetries = 2
				o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter
			})},
		}, r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if m.ID == "bad" {
				return errBoom
			}
			return r.done(ctx, m)
		}))
		r.awaitCommitted(t)
		published := read(t, r.client(), letters)
		require.Equal(t, []string{"0/1"}, lettersOf(published))
		require.Contains(t, header(published[0], kafkaconsumer.HeaderReason),
			`handler "h" gave up message "bad" after 2 attempts: boom`)
		require.Equal(t, []int{1, 2}, r.attempts("h", 0, 1))
		require.Empty(t, r.rejected(t, ib))
		require.Equal(t, 2, r.ledger.accepted(topic))
	})
}

// TestGivenUpDirectRecordHaltsUnderHalt proves contract 7.4: Halt stops
// before the record for the rest of this assignment, and the other partitions continue.
func TestGivenUpDirectRecordHaltsUnderHalt(t *testing.T) {
	onDirect(t, 2, func(t *testing.T, r *directRig) {
		r.send(t, 0, "good", "bad", "behind")
		r.send(t, 1, "other", "others")
		fails := atomic.Bool{}
		fails.Store(true)
		s := settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 2
			o.Acceptor.BadRecords = acceptor.BadRecordHalt
		})}}
		h := r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if m.ID == "bad" && fails.Load() {
				return errBoom
			}
			return r.done(ctx, m)
		})
		ib, end := r.run(t, s, h)
		eventually(t, "halted, and what was handled is committed", func() bool {
			return len(ib.Health().Consumers[0].Halted()) == 1 && r.committed(0) >= 1 && r.committed(1) == 2
		})
		halted := ib.Health().Consumers[0].Halted()[0]
		require.Equal(t, []any{0, int64(1)}, []any{halted.Partition, halted.Accepted})
		require.ErrorContains(t, halted.Halted, `handler "h" gave up message "bad" after 2 attempts: boom`)
		require.ErrorIs(t, halted.Halted, errBoom)
		require.ErrorContains(t, ib.Health().Degraded(), "is halted before offset 1")
		require.Equal(t, int64(1), r.committed(0))
		end()
		fails.Store(false)
		r.run(t, s, h)
		r.awaitCommitted(t)
		require.Empty(t, r.rejected(t, ib))
		require.Equal(t, []int{1, 2, 1}, r.attempts("h", 0, 1), "redelivered, it starts again")
	})
}

// TestDirectUnroutedMessagesFollowTheirPolicy proves contract 4.6: the policies and counters are
// the same as with the inbox.
func TestDirectUnroutedMessagesFollowTheirPolicy(t *testing.T) {
	t.Parallel()
	for policy, want := range map[acceptor.UnroutedPolicy]struct {
		committed          int64
		handled            int
		unrouted, rejected int64
	}{
		acceptor.UnroutedIgnore: {3, 2, 1, 0},
		acceptor.UnroutedReject: {3, 2, 0, 1},
		acceptor.UnroutedHalt:   {1, 1, 0, 0},
	} {
		t.Run(string(policy), func(t *testing.T) {
			onDirect(t, 1, func(t *testing.T, r *directRig) {
				typed := func(typ string) kafkatest.Record {
					return kafkatest.Record{Value: []byte("x"), Headers: []kafkatest.Header{{Key: "MessageType", Value: []byte(typ)}}}
				}
				require.NoError(t, r.kafka.Produce(topic, typed("t"), typed("unknown"), typed("t")))
				r.ledger.sparse = true // the ledger has no unrouted messages
				ib, _ := r.run(t, settings{config: headerTypes, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
					o.Acceptor.Unrouted = policy
				})}},
					r.handler("h", r.done))
				eventually(t, "committed", func() bool { return r.committed(0) == want.committed })
				if policy == acceptor.UnroutedHalt {
					eventually(t, "halted", func() bool { return len(ib.Health().Consumers[0].Halted()) == 1 })
				}
				require.Len(t, r.of("h"), want.handled)
				require.EqualValues(t, want.unrouted, ib.Counters().Unrouted)
				require.Len(t, r.rejected(t, ib), int(want.rejected))
			})
		})
	}
}

// TestDirectBatchOfEventsIsOneRecord checks a record with several messages: each handler runs for
// its messages, and unrouted messages follow their policy.
func TestDirectBatchOfEventsIsOneRecord(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		batch := `[{"specversion":"1.0","id":"a","source":"s","type":"t","data":1},{"specversion":"1.0","id":"b","source":"s","type":"other"},{"specversion":"1.0","id":"c","source":"s","type":"t"}]`
		require.NoError(t, r.kafka.Produce(topic, kafkatest.Record{Value: []byte(batch),
			Headers: []kafkatest.Header{{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}}},
			kafkatest.Record{Value: []byte(`{`), Headers: []kafkatest.Header{{Key: "content-type",
				Value: []byte("application/cloudevents+json")}}}))
		r.next[place{topic, 0}] = 2
		r.ledger.sparse = true
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.Unrouted = acceptor.UnroutedReject
		})}},
			r.handler("h", func(_ context.Context, m inboxtest.Bytes) error {
				if m.ID == "a" && m.Attempt < 3 {
					return errBoom
				}
				return nil
			}))
		r.awaitCommitted(t)
		calls := r.of("h")
		require.Equal(t, []string{"a", "c", "a", "a"}, []string{calls[0].id, calls[1].id, calls[2].id, calls[3].id})
		rows := r.rejected(t, ib)
		require.Len(t, rows, 2, "the batch for its unrouted message, and the record that is no event")
		require.Contains(t, rows[0].Reason, `no handler for type "other"`)
	})
}

// halfUnrouted is a record with the message "a", and "b" of a type without handlers.
var halfUnrouted = kafkatest.Record{
	Value:   []byte(`[{"specversion":"1.0","id":"a","source":"s","type":"t"},{"specversion":"1.0","id":"b","source":"s","type":"other"}]`),
	Headers: []kafkatest.Header{{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}},
}

// TestUnroutedGivenUpDirectRecordIsKeptWithBothReasons proves contract 4.6 and 7.4: a
// rejected record is kept with all of its reasons.
func TestUnroutedGivenUpDirectRecordIsKeptWithBothReasons(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		require.NoError(t, r.kafka.Produce(topic, halfUnrouted))
		r.next[place{topic, 0}] = 1
		r.ledger.sparse = true // nothing is done in the end
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
			o.Acceptor.Unrouted = acceptor.UnroutedReject
		})}},
			r.handler("h", func(context.Context, inboxtest.Bytes) error { return errBoom }))
		r.awaitCommitted(t)
		rows := r.rejected(t, ib)
		require.Len(t, rows, 1)
		require.Contains(t, rows[0].Reason, `handler "h" gave up message "a" after 1 attempts: boom`)
		require.Contains(t, rows[0].Reason, `no handler for type "other"`)
		require.EqualValues(t, 1, ib.Counters().Rejected)
	})
}

// TestPartlyUnroutedDirectRecordDoesNotRunUnderHalt proves contract 4.6: Halt stops
// before the record, not in the middle of it.
func TestPartlyUnroutedDirectRecordDoesNotRunUnderHalt(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		require.NoError(t, r.kafka.Produce(topic, halfUnrouted))
		r.ledger.sparse = true // nothing is done
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.Unrouted = acceptor.UnroutedHalt
		})}}, r.handler("h", r.done))
		eventually(t, "halted", func() bool { return len(ib.Health().Consumers[0].Halted()) == 1 })
		require.Empty(t, r.of("h"))
		require.Zero(t, r.committed(0))
	})
}

// TestDirectHandlersErrorsDecideRetryAndRejection proves contract 5.7 for synchronous channels.
func TestDirectHandlersErrorsDecideRetryAndRejection(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "snoozes", "later", "slow")
		snoozes := 0
		var began []time.Time
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 2
			o.Processor.HandlerTimeout = time.Second
			o.Backoff = func(int) time.Duration { return time.Hour }
		})}},
			r.handler("h", func(ctx context.Context, m inboxtest.Bytes) error {
				switch {
				case m.ID == "snoozes" && snoozes < 5:
					snoozes++
					return handler.Snooze(time.Millisecond)
				case m.ID == "later":
					if began = append(began, time.Now()); m.Attempt == 1 {
						return handler.RetryAfter(300*time.Millisecond, errBoom)
					}
				case m.ID == "slow" && m.Attempt == 1:
					<-ctx.Done()
					return handler.RetryAfter(0, ctx.Err())
				}
				return r.done(ctx, m)
			}))
		r.awaitCommitted(t)
		require.Equal(t, []int{1, 1, 1, 1, 1, 1}, r.attempts("h", 0, 0), "a snooze charges nothing")
		require.Equal(t, []int{1, 2}, r.attempts("h", 0, 1))
		require.GreaterOrEqual(t, began[1].Sub(began[0]), 300*time.Millisecond)
		require.Equal(t, []int{1, 2}, r.attempts("h", 0, 2), "a timeout is a failure")
		counted := ib.Counters()
		require.EqualValues(t, []int64{5, 2, 3, 0}, []int64{counted.Snoozed, counted.Failed, counted.Processed,
			counted.Rejected})
	})
}

// TestDirectTransactionIsAtomic proves contract 5.11 for synchronous channels:
// what a transactional handler writes is stored as a whole or not at all, and a swallowed SQL error
// is a failure.
func TestDirectTransactionIsAtomic(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		inboxtest.Exec(t, r.database.DB, "CREATE TABLE effects (message_id varchar(200) PRIMARY KEY)")
		write := func(tx *gorm.DB, id string) error {
			return tx.Exec("INSERT INTO effects (message_id) VALUES (?)", id).Error
		}
		r.send(t, 0, "fails", "swallows", "panics", "good")
		r.ledger.sparse = true // this test checks the table instead
		var failures []error
		hooks := handler.Hooks{OnAttempt: func(_ context.Context, e handler.AttemptEvent) {
			if e.Err != nil {
				failures = append(failures, e.Err)
			}
		}}
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
			o.Hooks = hooks
		})}},
			inbox.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if err := write(tx, m.ID); err != nil {
					return err
				}
				switch m.ID {
				case "fails":
					return errBoom
				case "swallows":
					_ = write(tx, m.ID)
				case "panics":
					panic("ouch")
				}
				return nil
			}))
		r.awaitCommitted(t)
		var effects []string
		require.NoError(t, ib.DB().Table("effects").Pluck("message_id", &effects).Error)
		require.Equal(t, []string{"good"}, effects)
		require.Len(t, r.rejected(t, ib), 3)
		require.True(t, slices.ContainsFunc(failures, func(err error) bool { return errors.Is(err, errBoom) }))
		require.ErrorContains(t, failures[1], "swallowed an error of its transaction")
	})
}

// TestDirectHandlersEachGetACopyOfTheBody checks that a handler may change the body that it gets.
func TestDirectHandlersEachGetACopyOfTheBody(t *testing.T) {
	onDirect(t, 1, func(t *testing.T, r *directRig) {
		r.ledger.sparse = true // nothing is done in the end
		bodies := make(chan string, 10)
		spoil := func(_ context.Context, m inboxtest.Bytes) error {
			bodies <- string(m.Payload)
			clear(m.Payload)
			return errBoom
		}
		require.NoError(t, r.kafka.Produce(topic, kafkatest.Record{Value: []byte("body")}))
		ib, _ := r.run(t, settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 2
		})}}, r.handler("a", spoil),
			r.handler("b", spoil))
		eventually(t, "committed", func() bool { return r.committed(0) == 1 })
		for range 4 {
			require.Equal(t, "body", receive(t, bodies))
		}
		rows := r.rejected(t, ib)
		require.Len(t, rows, 1)
		require.Equal(t, "body", string(rows[0].Value))
		require.Contains(t, rows[0].Reason, `handler "a" gave`)
		require.Contains(t, rows[0].Reason, `handler "b" gave`)
	})
}
