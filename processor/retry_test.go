package processor_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

var errBoom = errors.New("boom")

func boom(context.Context, inboxtest.Bytes) error { return errBoom }

// many returns n message IDs.
func many(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%05d", i)
	}
	return ids
}

func TestHandlerFailureNeverAffectsItsSibling(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		var runs atomic.Int64
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inboxtest.Do("fails", boom),
			inboxtest.Do("works", func(context.Context, inboxtest.Bytes) error { runs.Add(1); return nil }),
		))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 2, Completed: 1, Failed: 1}, inboxtest.Process(t, ib))
		done := inboxtest.Status(t, ib, "1", "works")
		require.Equal(t, inboxtest.Noon, done.CompletedAt.UTC())
		require.Equal(t, models.OutcomeProcessed, done.Outcome)
		require.Nil(t, done.ProcessingStartedAt)
		require.EqualValues(t, 3, done.Version, "claimed, completed")

		failed := inboxtest.Status(t, ib, "1", "fails")
		require.Equal(t, "boom", *failed.LastError)
		require.Equal(t, 1, failed.ErrorCount)
		require.Nil(t, failed.ProcessingStartedAt)
		require.Nil(t, failed.WorkerID)
		require.Nil(t, failed.CompletedAt)

		for range 10 {
			clock.Advance(time.Minute)
			inboxtest.Process(t, ib)
		}
		require.True(t, inboxtest.Status(t, ib, "1", "fails").IsPoisoned)
		require.Equal(t, done, inboxtest.Status(t, ib, "1", "works"), "it stays done")
		require.EqualValues(t, 1, runs.Load())
	})
}

func TestHistoryOfFailuresStaysAfterSuccess(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		attempts := make(chan int, 10)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				attempts <- m.Attempt
				if m.Attempt < 3 {
					return errBoom
				}
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		for range 3 {
			inboxtest.Process(t, ib)
			clock.Advance(4 * time.Second)
		}
		s := inboxtest.Status(t, ib, "1", "h")
		require.NotNil(t, s.CompletedAt)
		require.Equal(t, 2, s.ErrorCount)
		require.Equal(t, "boom", *s.LastError)
		require.Nil(t, s.NextAttemptAt)
		require.Equal(t, []int{1, 2, 3}, []int{<-attempts, <-attempts, <-attempts})
	})
}

// delays fails each message once and returns how long each must wait for its retry.
func delays(t *testing.T, ib *inbox.Inbox, clock *fxtest.Clock, want int) []time.Duration {
	t.Helper()
	drained := inboxtest.Process(t, ib)
	require.Equal(t, processor.Drained{Picked: want, Failed: want}, drained)
	var found []time.Duration
	for _, s := range inboxtest.Statuses(t, ib) {
		found = append(found, s.NextAttemptAt.Sub(clock.Now()))
	}
	return found
}

func TestBackoffDoublesWithJitterUpToItsLimit(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 200
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxRetries = math.MaxInt32
			o.Processor.MaxRetryDelay = 5 * time.Second
		}),
			inboxtest.Handlers(inboxtest.Do("h", boom)))
		inboxtest.Accept(t, ib, many(messages)...)
		second := time.Second
		for _, tc := range []struct {
			errors   int // before this failure
			from, to time.Duration
		}{
			{0, 1 * second, 2 * second}, {1, 2 * second, 4 * second}, {2, 5 * second / 2, 5 * second},
			{20, 5 * second / 2, 5 * second},
			{31, 5 * second / 2, 5 * second}, {62, 5 * second / 2, 5 * second}, {1_000_000_000, 5 * second / 2, 5 * second},
		} {
			inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET error_count = ?", tc.errors)
			found := delays(t, ib, clock, messages)
			lower, middle := 0, (tc.from+tc.to)/2
			for _, delay := range found {
				require.GreaterOrEqual(t, delay, tc.from, tc.errors)
				require.LessOrEqual(t, delay, tc.to, tc.errors)
				if delay < middle {
					lower++
				}
			}
			// Even at a million runs 200 fair coins do not stray this far.
			require.Greater(t, lower, 50, "the jitter is spread over its whole range")
			require.Less(t, lower, 150, "the jitter is spread over its whole range")
			clock.Advance(tc.to)
		}
	})
}

func TestErrorCountOfMaxRetriesPoisons(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for maxRetries, attempts := range map[int]int{0: 1, 1: 1, 5: 5} {
			clock := fxtest.NewClock(inboxtest.Noon)
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Clock = clock
				o.Processor.MaxRetries = maxRetries
			}),
				inboxtest.Handlers(inboxtest.Do("h", boom)))
			id := fmt.Sprint(maxRetries)
			inboxtest.Accept(t, ib, id)
			for n := 1; n <= attempts; n++ {
				require.False(t, inboxtest.Status(t, ib, id, "h").IsPoisoned)
				require.Equal(t, 1, inboxtest.Process(t, ib).Picked, "attempt %d of %d", n, attempts)
				clock.Advance(time.Minute)
			}
			s := inboxtest.Status(t, ib, id, "h")
			require.True(t, s.IsPoisoned)
			require.Equal(t, attempts, s.ErrorCount)
			require.Nil(t, s.NextAttemptAt)
			require.Nil(t, s.CompletedAt)
			require.Equal(t, "boom", *s.LastError)
			clock.Advance(1000 * time.Hour)
			require.Zero(t, inboxtest.Process(t, ib), "a poisoned status waits for an operator")
			require.EqualValues(t, 1, ib.Counters().Poisoned)
			require.EqualValues(t, attempts, ib.Counters().Failed)
		}
	})
}
