package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestDrainContinuesAfterABatchFails(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.BatchSize = 10
			o.Processor.MaxRetries = 2
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				switch {
				case m.ID == "z-snoozes":
					return handler.Snooze(time.Second)
				case m.ID[0] == 'z':
					return nil
				}
				return errBoom
			})))
		inboxtest.Accept(t, ib, append(many(40), "z1", "z2", "z-snoozes")...)
		require.Equal(t, processor.Drained{Picked: 43, Completed: 2, Failed: 40, Released: 1}, inboxtest.Process(t, ib))
		clock.Advance(2 * time.Second)
		require.Equal(t, processor.Drained{Picked: 41, Poisoned: 40, Released: 1}, inboxtest.Process(t, ib))
	})
}

func TestProcessPendingRunsMessagesAcceptedByHandlers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var ib *inbox.Inbox
		ib = inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			if len(m.ID) == 5 {
				return nil
			}
			_, err := ib.Accept(ctx, inboxtest.Message(m.ID+"+"))
			return err
		})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 5, Completed: 5}, inboxtest.Process(t, ib))
	})
}

func TestProcessPendingLeavesNothingBehind(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Process(t, ib)
		left := workers(t, d)
		require.Len(t, left, 1, "its keys")
		require.Equal(t, left[0].StartedAt, *left[0].StoppedAt, "and no worker")
		require.False(t, ib.Health().Processor.Running)
		require.Zero(t, inboxtest.Process(t, ib))
	})
}

func TestClaimWithoutAWorkerIsStuckFromTheThresholdOn(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		attempts := make(chan int, 10)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.StuckMessageThreshold = time.Minute
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { attempts <- m.Attempt; return nil })))
		inboxtest.Accept(t, ib, "1")
		claim(t, d, clock, "", 1, "h") // and its process dies

		clock.Advance(time.Minute - time.Microsecond)
		require.Zero(t, inboxtest.Process(t, ib), "a moment before, it may still be running")
		require.NotNil(t, inboxtest.Status(t, ib, "1", "h").ProcessingStartedAt)

		clock.Advance(time.Microsecond)
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib), "due at once the first time")
		require.EqualValues(t, 1, ib.Counters().Recovered)
		require.Equal(t, 2, <-attempts, "the handler can tell a rerun")
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").AbandonedCount, "a finished attempt resets it")

		inboxtest.Accept(t, ib, "2")
		claim(t, d, clock, "", 1, "h")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 1 WHERE message_id = '2'")
		clock.Advance(time.Minute)
		require.Zero(t, inboxtest.Process(t, ib), "released with a delay the second time")
		s := inboxtest.Status(t, ib, "2", "h")
		require.Nil(t, s.ProcessingStartedAt)
		require.Equal(t, 2, s.AbandonedCount)
		require.Zero(t, s.ErrorCount)
		wait := s.NextAttemptAt.Sub(clock.Now())
		require.GreaterOrEqual(t, wait, 2*time.Second)
		require.LessOrEqual(t, wait, 4*time.Second)
		clock.Advance(4 * time.Second)
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib))
	})
}

func TestStuckThresholdIgnoresClaimsOfWorkers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		w := worker("0192f000-0000-7000-8000-000000000001", "h")
		require.NoError(t, heartbeat(t, d, clock, w))
		claim(t, d, clock, w.ID, 1, "h")
		clock.Advance(1000 * time.Hour)
		require.Zero(t, inboxtest.Process(t, ib), "a long handler in a worker is never run twice")
	})
}

func TestStatusAbandonedTooOftenIsPoisoned(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxAbandoned = 3
			o.Processor.StuckMessageThreshold = time.Second
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		for n := 1; n <= 3; n++ {
			require.False(t, inboxtest.Status(t, ib, "1", "h").IsPoisoned)
			claim(t, d, clock, "", 1, "h")
			clock.Advance(time.Second)
			// Only the release may happen: nothing may run the status.
			ctx := context.Background()
			require.NoError(t, ib.Pause(ctx, "h"))
			inboxtest.Process(t, ib)
			require.Equal(t, n, inboxtest.Status(t, ib, "1", "h").AbandonedCount)
			clock.Advance(time.Minute)
		}
		s := inboxtest.Status(t, ib, "1", "h")
		require.True(t, s.IsPoisoned)
		require.Equal(t, "workers vanish while running it", *s.LastError)
		require.Zero(t, s.ErrorCount)
		require.Nil(t, s.NextAttemptAt)
		require.EqualValues(t, 1, ib.Counters().Poisoned)
	})
}

func TestFailureResetsTheAbandonedCount(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) }),
			inboxtest.Handlers(inboxtest.Do("h", boom)))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 5")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").AbandonedCount)
	})
}

func TestDrainEndsWhileAStatusKeepsComingDue(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.BatchSize = 2 }),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if m.ID == "m00000" {
					return handler.Snooze(0)
				}
				return nil
			})))
		inboxtest.Accept(t, ib, many(10)...)
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 9, drained.Completed)
		require.Positive(t, drained.Released)
		require.Equal(t, drained.Picked, drained.Completed+drained.Released)
	})
}

func TestLongDrainStampsEachClaimWithItsTime(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		var ib *inbox.Inbox
		h := inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			require.Equal(t, clock.Now(), inboxtest.Status(t, ib, m.ID, "h").ProcessingStartedAt.UTC())
			clock.Advance(time.Hour)
			return nil
		})
		ib = inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(h))
		inboxtest.Accept(t, ib, "1", "2", "3")
		require.Equal(t, processor.Drained{Picked: 3, Completed: 3}, inboxtest.Process(t, ib))
	})
}
