package processor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// brokenClock panics once each time it is broken, in whichever goroutine of the processor asks it
// first.
type brokenClock struct {
	clock.System
	broken atomic.Bool
}

func (c *brokenClock) Now() time.Time {
	if c.broken.CompareAndSwap(true, false) {
		panic("the clock is broken")
	}
	return c.System.Now()
}

func TestCrashOfAnyServiceIsSurvived(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c := &brokenClock{}
		ran := make(chan string, 100)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Clock = c }),
			inboxtest.Handlers(
				inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Start(t, ib)
		for _, id := range many(10) {
			c.broken.Store(true)
			inboxtest.Eventually(t, func() bool { return !c.broken.Load() }, "something crashed")
			inboxtest.Accept(t, ib, id)
			// An earlier message may run again, if the crashed goroutine had its result.
			for id != inboxtest.Receive(t, ran, "the message") {
			}
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
	})
}

func TestFailedClaimIsRetriedLongBeforeThePoll(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 1)
		// The poll comes later than any test waits.
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		require.NoError(t, ib.Pause(context.Background(), "h"))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_messages RENAME TO hidden")
		require.NoError(t, ib.Resume(context.Background(), "h"))
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Conditions["claiming"] != nil }, "a claim failed")
		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_messages")
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the message"))
	})
}

func TestHangingHookDoesNotDelayTheStop(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		hanging, letGo := make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(letGo) })
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(),
			inbox.Configure(func(o *inbox.Options) {
				o.Hooks = handler.Hooks{OnAttempt: func(context.Context, handler.AttemptEvent) {
					close(hanging)
					<-letGo
				}}
			}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, hanging, "the hook")
		require.Error(t, stop(t, ib, 2*time.Second))
		require.NotNil(t, inboxtest.Status(t, ib, "1", "h").CompletedAt)
	})
}

func TestDrainLeavesUnknownKeysToLivingWorkers(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		newer := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("new", inboxtest.Nothing)))
		inboxtest.Accept(t, newer, "1")
		ib := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 1 }, "a worker registered")
		inboxtest.Process(t, ib)
		require.False(t, inboxtest.Status(t, ib, "1", "new").IsPoisoned)
	})
}

// SQLite alone has one write lock for all: a transactional handler that runs for longer than
// WorkerTimeout keeps its own worker from sending heartbeats.
func TestLongTransactionOnSQLiteFencesNoWorker(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	db := testenv.OpenSQLite(t, testenv.BusyTimeout(testenv.SQLiteDSN(t), 50*time.Millisecond))
	var runs atomic.Int64
	// Long enough that a busy machine does not keep the worker from its heartbeats.
	const timeout = 5 * time.Second
	ib := inboxtest.New(t, db, hasty(), inbox.Configure(func(o *inbox.Options) { o.Processor.WorkerTimeout = timeout }),
		inboxtest.Handlers(inboxtest.Tx("h", func(ctx context.Context, _ *gorm.DB, _ inboxtest.Bytes) error {
			runs.Add(1)
			select {
			case <-time.After(2 * timeout):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})))
	inboxtest.Start(t, ib)
	inboxtest.Accept(t, ib, "1")
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it completed")
	require.EqualValues(t, 1, runs.Load())
}
