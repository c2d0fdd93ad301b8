package processor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

// probing returns an inbox with two handlers. "shaky" has failed once, which opened its circuit;
// from then on its calls do not return until letGo is closed. "sound" works.
func probing(
	t *testing.T, d *inboxtest.Database, opts ...handler.Option,
) (ib *inbox.Inbox, calls *atomic.Int64, letGo chan bool) {
	t.Helper()
	calls, letGo = &atomic.Int64{}, make(chan bool)
	opts = append(opts, handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: 200 * time.Millisecond}))
	ib = inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Mode = processor.ModeCompeting
		o.Processor.Concurrency = 4
		o.Processor.StuckHandlerGrace = time.Minute
		o.Processor.StopBudget = soon
		o.Processor.HeartbeatInterval = time.Second
	}),
		inboxtest.Handlers(
			inboxtest.Do("shaky", func(context.Context, inboxtest.Bytes) error {
				if calls.Add(1) == 1 {
					return errBoom
				}
				<-letGo
				return nil
			}, opts...),
			inboxtest.Do("sound", inboxtest.Nothing)))
	return ib, calls, letGo
}

// requireSound checks that the handler "sound" still runs messages.
func requireSound(t *testing.T, ib *inbox.Inbox, id string) {
	t.Helper()
	inboxtest.Accept(t, ib, id)
	inboxtest.Eventually(t, func() bool {
		return inboxtest.Status(t, ib, id, "sound").CompletedAt != nil
	}, "the other handler goes on")
}

// Contract 5.2, 5.4, 5.8: a probe that does not return affects its own handler only.
func TestHangingProbeBlocksNeitherOthersNorStop(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, calls, letGo := probing(t, d, handler.Timeout(soon))
		defer close(letGo)
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Eventually(t, func() bool { return calls.Load() == 1 }, "the first call")
		inboxtest.Accept(t, ib, "2", "3", "4")
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Stuck["shaky"] == 1 }, "the probe does not return")
		requireSound(t, ib, "5")
		require.EqualValues(t, 2, calls.Load(), "one probe at a time")
		require.ErrorContains(t, stop(t, ib, 3*time.Second), "1 handlers still run")
	})
}

func TestProbeOfADrainBlocksNoWorker(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, calls, letGo := probing(t, d)
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		inboxtest.Accept(t, ib, "2", "3")
		drained := make(chan error, 1)
		drain := func() { _, err := ib.ProcessPending(context.Background()); drained <- err }
		inboxtest.Eventually(t, func() bool {
			go drain()
			select {
			case err := <-drained:
				require.NoError(t, err)
				return false
			case <-time.After(500 * time.Millisecond):
				return calls.Load() == 2
			}
		}, "a drain has the probe")
		inboxtest.Start(t, ib)
		requireSound(t, ib, "4")
		require.EqualValues(t, 2, calls.Load())
		close(letGo)
		require.NoError(t, inboxtest.Receive(t, drained, "the drain"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
	})
}

func TestHalfOpenCircuitWithoutWorkDoesNotDegrade(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { return errBoom },
				handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: 50 * time.Millisecond}))))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "1", "h").IsPoisoned }, "it was poisoned")
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "nothing is wrong now")
	})
}

func TestOneCallOfABatchIsOneAttemptForItsCircuit(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		calls := 0
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(
			inbox.Batch("h", 10, func(_ context.Context, batch []inboxtest.Bytes) error {
				calls++
				if calls == 2 { // some messages passed, so the service is reachable
					return handler.BatchResult(append(make([]error, len(batch)-1), errBoom)...)
				}
				return errBoom
			}, handler.CircuitBreaker(handler.Breaker{Failures: 2, OpenFor: time.Hour}))))
		for i := range 4 {
			require.Empty(t, ib.Health().Processor.OpenCircuits, "after call %d", i)
			var ids []string
			for n := range 10 {
				ids = append(ids, fmt.Sprintf("%d-%d", i, n))
			}
			inboxtest.Accept(t, ib, ids...)
			require.Equal(t, 10, inboxtest.Process(t, ib).Picked)
		}
		open := ib.Health().Processor.OpenCircuits
		require.Len(t, open, 1)
		require.Equal(t, "h", open[0].HandlerKey)
		require.ErrorContains(t, open[0].Err, errBoom.Error())
		require.WithinDuration(t, open[0].Since.Add(time.Hour), open[0].ProbeAt, time.Minute)
	})
}

// Contract 5.4, 5.13.
func TestQueueOfAStuckHandlerIsReleasedToOtherWorkers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		letGo := make(chan bool)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 4
			o.Processor.StuckHandlerGrace = soon
		}),
			inboxtest.Handlers(
				inbox.Batch("h", 10, func(context.Context, []inboxtest.Bytes) error {
					<-letGo
					return nil
				}, handler.Concurrency(1), handler.Timeout(soon))))
		inboxtest.Accept(t, ib, many(30)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Stuck["h"] == 1 && claimed(t, ib) == 0
		}, "nothing is held that cannot run")
		close(letGo)
		inboxtest.Eventually(t, func() bool {
			var untried int64
			require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("completed_at IS NULL AND error_count = 0").Count(&untried).Error)
			return untried == 0
		}, "it goes on when the call has returned")
	})
}

func TestStuckMembersOfGroupsAreBounded(t *testing.T) {
	// Not on SQLite: with one transaction at a time there is one call at a time.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		letGo := make(chan bool)
		var inside atomic.Int64
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
			o.Processor.StuckHandlerGrace = soon
			o.Processor.MaxRetries = 50
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(context.Context, *gorm.DB, inboxtest.Bytes) error {
				inside.Add(1)
				defer inside.Add(-1)
				<-letGo
				return nil
			}, handler.Timeout(soon), handler.TxGroup(6))))
		inboxtest.Accept(t, ib, many(12)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Stuck["h"] >= 2 && claimed(t, ib) == 0
		}, "both slots' calls are given up")
		// If one call was given up before the other was found overdue, a member of its group had
		// the slot meanwhile.
		require.LessOrEqual(t, inside.Load(), int64(3))
		close(letGo)
		inboxtest.Eventually(t, func() bool { return inside.Load() == 0 }, "they returned")
	})
}

// Contract 5.13: a pause takes effect within a heartbeat, also for what is queued.
func TestPauseReleasesQueuedMessages(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var ran atomic.Int64
		letGo := make(chan bool)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 5
		}), exclusiveMode(), // otherwise what waits is released for other workers
			inboxtest.Handlers(
				inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { ran.Add(1); <-letGo; return nil })))
		inboxtest.Accept(t, ib, many(10)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return ran.Load() == 5 && claimed(t, ib) == 10
		}, "five run, the others are queued")
		require.NoError(t, ib.Pause(context.Background(), "h"))
		inboxtest.Eventually(t, func() bool { return claimed(t, ib) == 5 }, "the queue was given back")
		close(letGo)
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 5 }, "the running ones completed")
		require.EqualValues(t, 5, ran.Load())
		require.NoError(t, ib.Resume(context.Background(), "h"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
	})
}

// Contract 5.4, 5.11: a statement that ignores its cancellation costs only its own message an
// attempt.
func TestStatementOutlastingItsGraceBlocksNoOther(t *testing.T) {
	// Not on SQLite: its transaction would hold the only write lock.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		const held = "SELECT pg_advisory_xact_lock(1)"
		other := d.Another(t).Begin()
		inboxtest.Exec(t, other, held)
		t.Cleanup(func() { other.Rollback() })
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
			o.Processor.StatementTimeout = time.Second
			o.Processor.StuckHandlerGrace = soon
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" && m.Attempt == 1 {
					return tx.WithContext(context.Background()).Exec(held).Error
				}
				return nil
			}, handler.Timeout(time.Second), handler.TxGroup(3))))
		inboxtest.Accept(t, inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h", nothingTx))), "1", "2", "3")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "3", "h").CompletedAt != nil
		}, "the one behind it completed before the statement ended")
		require.NoError(t, other.Rollback().Error)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").ErrorCount)
	})
}
