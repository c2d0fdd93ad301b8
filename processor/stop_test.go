package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// stop calls Stop with a deadline and returns its error.
func stop(t *testing.T, ib *inbox.Inbox, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return stopIn(ctx, t, ib)
}

// stopIn calls Stop, and fails the test if Stop waits for what may never end.
func stopIn(ctx context.Context, t *testing.T, ib *inbox.Inbox) error {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- ib.Stop(ctx) }()
	return inboxtest.Receive(t, stopped, "the stop")
}

func TestStopLetsRunningHandlersFinishWithinItsBudget(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, finish := make(chan string, 10), make(chan struct{})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = time.Minute
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-finish
				return ctx.Err()
			})))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1", "2")
		inboxtest.Receive(t, running, "a handler")
		inboxtest.Receive(t, running, "a handler")
		stopped := make(chan error, 1)
		go func() { stopped <- ib.Stop(context.Background()) }()
		close(finish)
		require.NoError(t, inboxtest.Receive(t, stopped, "Stop"))
		require.True(t, inboxtest.AllCompleted(t, ib))
		require.NotNil(t, workers(t, d)[0].StoppedAt)
	})
}

func TestStopReleasesInterruptedAttemptsUncharged(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 3
			o.Processor.StopBudget = soon
		}), inboxtest.Handlers(
			inboxtest.Do("plain", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			}),
			inboxtest.Tx("tx", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			}),
			inboxtest.Do("in spite", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				<-ctx.Done()
				return nil
			}),
		))
		// Accepted before the start, so that one claim takes all three: on SQLite a running
		// transactional handler keeps every claim waiting.
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, ib.Start(context.Background()))
		for range 3 {
			inboxtest.Receive(t, running, "a handler")
		}
		require.NoError(t, stop(t, ib, inboxtest.Patience))
		for _, key := range []string{"plain", "tx"} {
			s := inboxtest.Status(t, ib, "1", key)
			require.Zero(t, s.ErrorCount, key)
			require.Zero(t, s.AbandonedCount, key)
			require.Nil(t, s.ProcessingStartedAt, key)
			require.Nil(t, s.WorkerID, key)
			require.Nil(t, s.NextAttemptAt, key)
			require.Nil(t, s.LastError, key)
			require.Nil(t, s.CompletedAt, key)
		}
		inSpite := inboxtest.Status(t, ib, "1", "in spite")
		require.NotNil(t, inSpite.CompletedAt)
		// A claim under way may take what was just released, and is released, too. The rows' versions tell
		// how many releases there were: a claim and its end raise them by one each.
		released := (inSpite.Version - 3) / 2
		for _, key := range []string{"plain", "tx"} {
			released += (inboxtest.Status(t, ib, "1", key).Version - 1) / 2
		}
		require.GreaterOrEqual(t, released, models.Version(2))
		require.EqualValues(t, released, ib.Counters().Released)
		require.NotNil(t, workers(t, d)[0].StoppedAt)
	})
}

func TestStopReleasesUnstartedClaims(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 100)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 5
			o.Processor.StopBudget = soon
		}), exclusiveMode(), // otherwise what waits is released for other workers
			inboxtest.Handlers(
				inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
					running <- m.ID
					return untilCancelled(ctx, m)
				})))
		inboxtest.Accept(t, ib, many(10)...)
		require.NoError(t, ib.Start(context.Background()))
		for range 5 {
			inboxtest.Receive(t, running, "a handler")
		}
		inboxtest.Eventually(t, func() bool {
			var claimed int64
			require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("processing_started_at IS NOT NULL").Count(&claimed).Error)
			return claimed == 10
		}, "all were claimed")
		require.NoError(t, stop(t, ib, inboxtest.Patience))
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Nil(t, s.ProcessingStartedAt)
			require.Nil(t, s.NextAttemptAt)
			require.Zero(t, s.ErrorCount)
		}
		require.Empty(t, running)
	})
}

func TestStopReturnsInTimeAndLeavesTheRestToRecovery(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, release := make(chan string, 10), make(chan struct{})
		defer close(release)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = soon
		}), inboxtest.Handlers(
			inboxtest.Do("deaf", func(context.Context, inboxtest.Bytes) error { running <- "deaf"; <-release; return nil }),
			inboxtest.Do("slow", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- "slow"
				return untilCancelled(ctx, m)
			}),
		))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "a handler")
		inboxtest.Receive(t, running, "a handler")
		// Stop waits for handlers for four fifths of that; the rest is left to store what returns.
		err := stop(t, ib, 5*time.Second)
		require.ErrorContains(t, err, "1 handlers still run, their claims are recovered by another worker")
		require.ErrorContains(t, err, `handler "deaf" with message "1"`)
		slow := inboxtest.Status(t, ib, "1", "slow")
		require.Nil(t, slow.ProcessingStartedAt, "what returned is released")
		deaf := inboxtest.Status(t, ib, "1", "deaf")
		require.NotNil(t, deaf.ProcessingStartedAt, "what did not stays claimed")
		require.Nil(t, workers(t, d)[0].StoppedAt, "its worker is not marked as stopped: its silence must tell")
	})
}

func TestStopAndStartInAnyOrderAndTwice(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				ran <- m.ID
				return nil
			})))
		ctx := context.Background()
		require.NoError(t, ib.Stop(ctx), "before Start")
		require.NoError(t, ib.Start(ctx))
		require.NoError(t, ib.Start(ctx))
		require.True(t, ib.Health().Processor.Running)
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the handler"))
		require.NoError(t, ib.Stop(ctx))
		require.NoError(t, ib.Stop(ctx))
		require.False(t, ib.Health().Processor.Running)
		inboxtest.Accept(t, ib, "2")

		started, cancel := context.WithCancel(ctx)
		require.NoError(t, ib.Start(started))
		cancel() // as Fx does once the application runs
		require.Equal(t, "2", inboxtest.Receive(t, ran, "the handler, after a restart and the end of the start's context"))

		ends := make(chan error, 20)
		for i := range 20 {
			go func() {
				if i%2 == 0 {
					ends <- ib.Start(ctx)
				} else {
					ends <- ib.Stop(ctx)
				}
			}()
		}
		for range 20 {
			require.NoError(t, inboxtest.Receive(t, ends, "a concurrent start or stop"))
		}
		require.NoError(t, ib.Stop(ctx))
	})
}

func TestStopWithoutTimeStillEnds(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			})))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		t.Log(stopIn(ctx, t, ib))
		inboxtest.Eventually(t, func() bool { return !ib.Health().Processor.Running }, "it does not run any more")
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").ErrorCount)
	})
}
