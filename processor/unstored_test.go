package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

func claimed(t *testing.T, ib *inbox.Inbox) (n int64) {
	t.Helper()
	require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("processing_started_at IS NOT NULL").Count(&n).Error)
	return n
}

// Contract 5.1, 5.9: a living worker keeps its results until they can be stored, however long that
// takes.
func TestUnstorableResultsAreKeptWithTheirClaims(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const timeout = 8 * time.Second // longer than a loaded machine stands still
		const messages, batch, concurrency = 150, 5, 2
		// No claim begins while more than 2*batch+concurrency results wait. Then calls may run,
		// messages be queued, and one claim be under way, whose messages still run.
		const bound = (2*batch + concurrency) + concurrency + batch + batch
		ran := newLedger()
		log, logs := inboxtest.Observe()
		build := func(db *gorm.DB) *inbox.Inbox {
			return inboxtest.New(t, db, silence(timeout, 200*time.Millisecond), log, inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = processor.ModeCompeting
				o.Processor.PollingInterval = time.Second
				o.Processor.BatchSize, o.Processor.Prefetch = batch, batch
				o.Processor.Concurrency = concurrency
			}),
				inboxtest.Handlers(inboxtest.Do("h", ran.note)))
		}
		one, other := build(d.DB), build(d.Another(t))
		allow := refuseResults(t, d, "NEW.id IS NOT NULL")
		inboxtest.Accept(t, one, many(messages)...)
		inboxtest.Start(t, one)
		inboxtest.Start(t, other)
		for _, ib := range []*inbox.Inbox{one, other} {
			inboxtest.Eventually(t, func() bool {
				return ib.Health().Processor.Conditions["storing results"] != nil
			}, "health tells")
		}
		for end := time.Now().Add(timeout + time.Second); time.Now().Before(end); pause(t, 50*time.Millisecond) {
			require.LessOrEqual(t, claimed(t, one), int64(2*bound), "claiming goes on without storing")
		}
		require.Greater(t, claimed(t, one), int64(2*batch))
		allow()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, one) }, "everything is stored")
		ran.requireOnce(t, messages)
		for _, ib := range []*inbox.Inbox{one, other} {
			require.Zero(t, ib.Counters().Fenced)
			require.Zero(t, ib.Counters().Recovered)
			inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
		}
		for _, s := range inboxtest.Statuses(t, one) {
			require.EqualValues(t, claimedAndSettled, s.Version)
		}
		require.LessOrEqual(t, logs.FilterMessageSnippet("results cannot be stored").Len(), 4, "the log is quiet")
	})
}

// Contract 5.1, 5.9: a worker that was silent for too long keeps its results under its new ID, and
// stores them before it releases claims of dead workers.
func TestWaitingResultsAreStoredBeforeTheirRecovery(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran, fenced, fell := newLedger(), make(chan struct{}, 3), make(chan struct{})
		ib := inboxtest.New(t, d.DB, silence(1500*time.Millisecond, 150*time.Millisecond),
			inboxtest.Handlers(inboxtest.Do("h", ran.note),
				inboxtest.Do("waits", func(ctx context.Context, _ inboxtest.Bytes) error {
					select {
					case <-ctx.Done():
						fenced <- struct{}{}
					case <-fell: // the message began after the fence fell
					}
					return nil
				})))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 1 }, "it registered")
		allowResults := refuseResults(t, d, "NEW.id IS NOT NULL")
		inboxtest.Accept(t, ib, "1", "2", "3")
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Conditions["storing results"] != nil
		}, "health tells")
		// Only now: a worker that is fenced before it has run anything has no results to store.
		allowHeartbeats := refuseHeartbeats(t, d)
		inboxtest.Receive(t, fenced, "its fence, behind which it cannot return")
		close(fell)
		allowResults()
		allowHeartbeats()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are stored")
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) > 1 }, "it is back under a new ID")
		ran.requireOnce(t, 3)
		require.Zero(t, ib.Counters().Fenced)
		require.Zero(t, ib.Counters().Recovered)
	})
}

// Contract 5.10: a status whose result the database refuses (a damaged page, a trigger of the
// application) does not block others.
func TestRefusedResultDoesNotBlockOthers(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 40
		ran := newLedger()
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inboxtest.Handlers(
			inboxtest.Do("refused", ran.note), inboxtest.Do("completes", ran.note),
			inboxtest.Do("fails", func(ctx context.Context, m inboxtest.Bytes) error {
				_ = ran.note(ctx, m)
				return handler.Poison(errBoom)
			})))
		allow := refuseResults(t, d, "NEW.handler_key = 'refused'")
		inboxtest.Accept(t, ib, many(messages)...)
		inboxtest.Start(t, ib)
		ended := func() (n int64) {
			require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("completed_at IS NOT NULL OR is_poisoned").Count(&n).Error)
			return n
		}
		inboxtest.Eventually(t, func() bool { return ended() == 2*messages }, "the others' results are stored")
		require.ErrorContains(t, ib.Health().Degraded(), "refused by the test")
		pause(t, 1500*time.Millisecond) // the refused result is tried again each second
		require.EqualValues(t, 2*messages, ended())
		require.ErrorContains(t, ib.Health().Degraded(), "refused by the test", "the others' success hides nothing")
		allow()
		inboxtest.Eventually(t, func() bool { return ended() == 3*messages }, "all are stored")
		ran.requireOnce(t, 3*messages)
		require.Zero(t, ib.Counters().Fenced)
		inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.Conditions) == 0 }, "health recovered")
		require.LessOrEqual(t, logs.FilterMessageSnippet("results cannot be stored").Len(), 2, "the log is quiet")
	})
}

// Contract 5.8: a stop reports what it leaves, and another worker recovers that.
func TestResultsAndHandlersThatOutlastAStopAreRecovered(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		first := newLedger()
		running, release := make(chan string, 10), make(chan struct{})
		defer close(release)
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeCompeting
		}), inboxtest.Handlers(
			inboxtest.Do("unstored", first.note),
			inboxtest.Do("deaf", func(_ context.Context, m inboxtest.Bytes) error { running <- m.ID; <-release; return nil })))
		allow := refuseResults(t, d, "NEW.handler_key = 'unstored'")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1", "2", "3")
		for range 3 {
			inboxtest.Receive(t, running, "a deaf handler")
		}
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Conditions["storing results"] != nil
		}, "health tells")
		inboxtest.Eventually(t, func() bool {
			first.mu.Lock()
			defer first.mu.Unlock()
			return len(first.runs) == 3
		}, "the others have run")
		err := stop(t, ib, 2*time.Second)
		require.ErrorContains(t, err, "3 handlers still run, their claims are recovered by another worker")
		require.ErrorContains(t, err, "3 results could not be stored, their claims are recovered by another worker")
		require.EqualValues(t, 6, claimed(t, ib))
		require.Nil(t, workers(t, d)[0].StoppedAt, "its silence must tell")
		allow()
		silentFor(t, d, workers(t, d)[0].ID, time.Hour)

		second := newLedger()
		successor := inboxtest.New(t, d.Another(t), hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeCompeting
		}),
			inboxtest.Handlers(inboxtest.Do("unstored", second.note), inboxtest.Do("deaf", second.note)))
		inboxtest.Start(t, successor)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, successor) }, "another worker took them up")
		second.requireOnce(t, 6)
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount, "nothing is charged")
		}
		require.EqualValues(t, 6, successor.Counters().Recovered)
	})
}
