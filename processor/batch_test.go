package processor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// calls records the messages of each call of a handler.
type calls struct {
	mu  sync.Mutex
	all [][]string
}

func (c *calls) note(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, ids)
}

func (c *calls) sizes() (sizes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.all {
		sizes = append(sizes, len(call))
	}
	return sizes
}

func idsOf(batch []inboxtest.Bytes) (ids []string) {
	for _, m := range batch {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestBatchHandlerGetsManyMessagesInOneCall(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen calls
		batch := func(_ context.Context, batch []inboxtest.Bytes) error { seen.note(idsOf(batch)...); return nil }
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(inbox.Batch("h", 10, batch)))
		inboxtest.Accept(t, ib, many(25)...)
		require.Equal(t, processor.Drained{Picked: 25, Completed: 25}, inboxtest.Process(t, ib))
		require.Equal(t, []int{10, 10, 5}, seen.sizes())
		require.True(t, inboxtest.AllCompleted(t, ib))

		seen.all = nil
		inboxtest.Start(t, ib)
		messages := make([]string, 0, 40)
		for _, id := range many(40) {
			messages = append(messages, "started "+id)
		}
		inboxtest.Accept(t, ib, messages...)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the worker completed all")
		sizes := seen.sizes()
		require.LessOrEqual(t, slices.Max(sizes), 10)
		require.Less(t, len(sizes), 20, "calls of several messages each")
	})
}

func TestBatchMessagesFailAndRetryIndependently(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen calls
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxRetries = 2
		}), inboxtest.Handlers(
			inbox.Batch("h", 10, func(_ context.Context, batch []inboxtest.Bytes) error {
				seen.note(idsOf(batch)...)
				results := make([]error, len(batch))
				for i, m := range batch {
					switch m.ID {
					case "fails":
						results[i] = errBoom
					case "poisons":
						results[i] = handler.Poison(errBoom)
					case "snoozes":
						results[i] = handler.Snooze(time.Hour)
					}
				}
				return handler.BatchResult(results...)
			})))
		inboxtest.Accept(t, ib, "fails", "fine", "poisons", "snoozes", "well")
		require.Equal(t, processor.Drained{Picked: 5, Completed: 2, Failed: 1, Poisoned: 1, Released: 1},
			inboxtest.Process(t, ib))
		require.Equal(t, 1, inboxtest.Status(t, ib, "fails", "h").ErrorCount)
		require.Zero(t, inboxtest.Status(t, ib, "snoozes", "h").ErrorCount)
		require.True(t, inboxtest.Status(t, ib, "poisons", "h").IsPoisoned)

		inboxtest.Accept(t, ib, "late", "later")
		clock.Advance(time.Minute)
		seen.all = nil
		require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Poisoned: 1}, inboxtest.Process(t, ib))
		require.Contains(t, seen.all, []string{"fails"}, "what has failed harms nobody but itself")
	})
}

func TestPanicInABatchPoisonsOnlyItsMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxRetries = 3
		}), inboxtest.Handlers(
			inbox.Batch("h", 10, func(_ context.Context, batch []inboxtest.Bytes) error {
				if slices.Contains(idsOf(batch), "culprit") {
					panic("boom")
				}
				return nil
			})))
		inboxtest.Accept(t, ib, "1", "2", "culprit", "4")
		for range 3 {
			inboxtest.Process(t, ib)
			clock.Advance(time.Minute)
		}
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Equal(t, s.MessageID == "culprit", s.IsPoisoned, s.MessageID)
			require.Equal(t, s.MessageID != "culprit", s.CompletedAt != nil, s.MessageID)
			if s.MessageID != "culprit" {
				require.Equal(t, 1, s.ErrorCount, "the call they shared failed once")
			}
		}
	})
}

// wrapping is an error whose Unwrap panics if it is a nil pointer.
type wrapping struct{ reason error }

func (w *wrapping) Error() string { return w.reason.Error() }
func (w *wrapping) Unwrap() error { return w.reason }

func TestNilPointerErrorFailsOnlyItsMessage(t *testing.T) {
	judge := func(batch []inboxtest.Bytes) error {
		results := make([]error, len(batch))
		for i, m := range batch {
			if m.ID == "culprit" {
				results[i] = (*wrapping)(nil)
			}
		}
		return handler.BatchResult(results...)
	}
	for name, h := range map[string]*inbox.HandlerSpec{
		"plain": inbox.Batch("h", 10, func(_ context.Context, batch []inboxtest.Bytes) error { return judge(batch) }),
		"transactional": inbox.TxBatch("h", 10, func(_ context.Context, _ *gorm.DB, batch []inboxtest.Bytes) error {
			return judge(batch)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
					o.Processor.MaxRetries = 1
				}), inboxtest.Handlers(h))
				inboxtest.Accept(t, ib, "1", "culprit", "3")
				require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Poisoned: 1}, inboxtest.Process(t, ib))
				require.Contains(t, *inboxtest.Status(t, ib, "culprit", "h").LastError, "the handler's error: ")
			})
		})
	}
}

func TestTransactionalBatchCommitsNothingOfAFailedMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		var seen calls
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(
			inbox.TxBatch("h", 10, func(ctx context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
				seen.note(idsOf(batch)...)
				require.NotNil(t, handler.DB(ctx))
				results := make([]error, len(batch))
				for i, m := range batch {
					require.NoError(t, write(tx, m.ID))
					if m.ID == "2" && m.Attempt == 1 {
						results[i] = errBoom
					}
				}
				return handler.BatchResult(results...)
			})))
		inboxtest.Accept(t, ib, "1", "2", "3")
		require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Failed: 1}, inboxtest.Process(t, ib))
		require.Equal(t, []string{"1", "3"}, written())
		require.Equal(t, [][]string{{"1", "2", "3"}, {"1", "3"}}, seen.all, "at once again, without the failed one")
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").ErrorCount)
		require.Equal(t, 1, inboxtest.Status(t, ib, "2", "h").ErrorCount)
		clock.Advance(time.Minute)
		require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
		require.Equal(t, []string{"1", "2", "3"}, written())
	})
}

func TestSwallowedSQLErrorOfATransactionalBatchIsAFailure(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inbox.TxBatch("h", 10, func(_ context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
				for _, m := range batch {
					require.NoError(t, write(tx, m.ID))
				}
				_ = tx.Exec("INSERT INTO nowhere VALUES (1)").Error
				return nil
			})))
		inboxtest.Accept(t, ib, "1", "2")
		require.Equal(t, processor.Drained{Picked: 2, Failed: 2}, inboxtest.Process(t, ib))
		require.Empty(t, written())
	})
}

func TestStaleClaimIsNotGivenToABatch(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		var seen calls
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 1
		}), inboxtest.Handlers(
			inbox.TxBatch("h", 2, func(_ context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
				seen.note(idsOf(batch)...)
				for _, m := range batch {
					require.NoError(t, write(tx, m.ID))
				}
				if slices.Contains(idsOf(batch), "1") { // another worker takes over the statuses that wait here
					return tx.Exec("UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = '3'").Error
				}
				return nil
			})))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return ib.Counters().Processed == 3 && ib.Counters().Fenced == 1
		}, "three completed, one is stale")
		require.Equal(t, [][]string{{"1", "2"}, {"4"}}, seen.all)
		require.Equal(t, []string{"1", "2", "4"}, written())
	})
}

func TestStopReleasesABatchUncharged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan int, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = soon
		}), inboxtest.Handlers(
			inbox.Batch("h", 3, func(ctx context.Context, batch []inboxtest.Bytes) error {
				running <- len(batch)
				<-ctx.Done()
				return ctx.Err()
			})))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Receive(t, running, "the handler")
		require.NoError(t, ib.Stop(context.Background()))
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount)
			require.Nil(t, s.ProcessingStartedAt)
		}
	})
}

func TestStatusesSuspectedOfACrashRunAlone(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen calls
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(
			inbox.Batch("h", 10, func(_ context.Context, batch []inboxtest.Bytes) error {
				seen.note(idsOf(batch)...)
				return nil
			})))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 1 WHERE message_id IN ('2', '3')")
		require.Equal(t, 4, inboxtest.Process(t, ib).Completed)
		require.Equal(t, [][]string{{"1", "4"}, {"2"}, {"3"}}, seen.all)
	})
}

func TestUndecodableMessageOfABatchIsPoisonedAlone(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		type order struct{ N int }
		total := 0
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inbox.Batch("sum", 10,
			func(_ context.Context, batch []handler.Message[order]) error {
				for _, m := range batch {
					total += m.Payload.N
				}
				return nil
			})))
		var messages []handler.RawMessage
		for _, body := range []string{`{"N":1}`, `{"N":`, `{"N":3}`} {
			messages = append(messages, handler.RawMessage{Channel: "c", Type: "t", ID: "id " + body, Content: []byte(body)})
		}
		_, err := ib.Accept(context.Background(), messages...)
		require.NoError(t, err)
		require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Poisoned: 1}, inboxtest.Process(t, ib))
		require.Equal(t, 4, total)
		require.Contains(t, *inboxtest.Status(t, ib, `id {"N":`, "sum").LastError, "decode body")
	})
}
