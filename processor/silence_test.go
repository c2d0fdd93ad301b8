package processor_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// silence sets WorkerTimeout and SweepInterval, and makes heartbeats as rare as possible: on SQLite
// a worker whose heartbeat takes from one tick to the next reads its row instead, and counts as
// alive.
func silence(timeout, sweeps time.Duration) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) {
		inboxtest.Defaults(o)
		p := &o.Processor
		p.HeartbeatInterval, p.SweepInterval, p.WorkerTimeout = min(timeout/3, time.Second), sweeps, timeout
		p.StopBudget, p.MaxRetryDelay = time.Second, 100*time.Millisecond
		p.PollingInterval = time.Hour
	})
}

// Contract 5.9: a worker without a successful heartbeat stops claiming after
// two thirds of WorkerTimeout, cancels its handlers at WorkerTimeout and
// returns under a new worker ID.
func TestSilentWorkerStopsClaimingThenCancelsThenReturns(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const timeout = 3 * time.Second
		var mu sync.Mutex
		starts := map[string]int{} // by message ID
		running, cancelled := make(chan struct{}, 10), make(chan struct{}, 10)
		ib := inboxtest.New(t, d.DB, silence(timeout, time.Minute),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				mu.Lock()
				starts[m.ID]++
				again := starts[m.ID] > 1
				mu.Unlock()
				if m.ID != "long" || again {
					return nil
				}
				running <- struct{}{}
				<-ctx.Done()
				cancelled <- struct{}{}
				return ctx.Err()
			})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "long")
		inboxtest.Receive(t, running, "the long handler")
		first := workers(t, d)
		allow := refuseHeartbeats(t, d)
		accepted := 0
		inboxtest.Eventually(t, func() bool {
			inboxtest.Accept(t, ib, fmt.Sprint(accepted))
			accepted++
			pause(t, 50*time.Millisecond)
			return len(cancelled) > 0
		}, "its handlers are cancelled")
		inboxtest.Accept(t, ib, "after that")
		pause(t, 300*time.Millisecond) // it tries to come back and cannot
		require.EqualValues(t, 1, inboxtest.Status(t, ib, "after that", "h").Version, "it claims nothing")
		allow()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		all := workers(t, d)
		require.Greater(t, len(all), 1)
		require.NotEqual(t, first[0].ID, all[1].ID)
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount, s.MessageID)
			require.Zero(t, s.AbandonedCount, s.MessageID)
		}
		mu.Lock()
		defer mu.Unlock()
		for id, n := range starts {
			if id == "long" {
				require.Equal(t, 2, n)
			} else {
				require.Equal(t, 1, n, "message %s", id)
			}
		}
		require.Zero(t, ib.Counters().Fenced)
		inboxtest.Eventually(t, func() bool { return ib.Health().Degraded() == nil }, "health recovered")
	})
}

// Contract 5.9, 4.7: no other worker has declared the worker dead, so it keeps its ID, and what it
// left unclaimed does not wait for the poll.
func TestWorkerClaimsAgainAfterALateHeartbeat(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const timeout = 6 * time.Second
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(timeout, time.Minute), inbox.Configure(func(o *inbox.Options) {
			o.Processor.HeartbeatInterval = 1900 * time.Millisecond // on SQLite, one that takes longer is no silence
		}),
			inboxtest.Handlers(
				inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "first")
		require.Equal(t, "first", inboxtest.Receive(t, ran, "a message"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "its result is stored")
		allow := refuseHeartbeats(t, d)
		pause(t, timeout*2/3+100*time.Millisecond)
		inboxtest.Accept(t, ib, "late")
		pause(t, 200*time.Millisecond)
		require.Empty(t, ran, "it is too silent to claim")
		allow()
		require.Equal(t, "late", inboxtest.Receive(t, ran, "the message that waited"), "polls come hourly")
	})
}

// Contract 5.9: a worker is dead if two sweeps in a row find it silent.
func TestWorkerIsNotDeclaredDeadByOneSweep(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const sweeps = time.Second
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(inboxtest.Patience, sweeps), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 1, "h")
		silentFor(t, d, vanishing, time.Hour)
		began := time.Now()
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, ran, "the recovered message")
		require.GreaterOrEqual(t, time.Since(began), 2*sweeps, "not by the first sweep")
	})
}

// Contract 5.9: a sweep counts only after the sweeper's own heartbeat: a worker that is cut off
// itself must not judge others by what it cannot see.
func TestWorkerThatCannotHeartbeatDeclaresNoWorkerDead(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const sweeps = 700 * time.Millisecond
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(inboxtest.Patience, sweeps), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 1, "h")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 2 }, "the worker registered")
		allow := refuseHeartbeats(t, d)
		silentFor(t, d, vanishing, time.Hour)
		pause(t, 4*sweeps)
		require.Empty(t, ran)
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").AbandonedCount)
		allow()
		inboxtest.Receive(t, ran, "the recovered message")
	})
}

// silentFor moves a worker's last heartbeat that far into the past.
func silentFor(t *testing.T, d *inboxtest.Database, workerID string, since time.Duration) {
	t.Helper()
	inboxtest.Exec(t, d.DB, "UPDATE inbox_workers SET heartbeat_at = ? WHERE id = ?", time.Now().UTC().Add(-since),
		workerID)
}

// A handler that has returned after its session was lost does not count as running.
func TestStopIgnoresReturnedHandlersOfALostSession(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running, release := make(chan struct{}, 10), make(chan struct{})
		observe, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, silence(3*time.Second, time.Minute), observe, inboxtest.Handlers(
			inboxtest.Do("deaf", func(context.Context, inboxtest.Bytes) error { running <- struct{}{}; <-release; return nil })))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		refuseHeartbeats(t, d)
		inboxtest.Eventually(t, func() bool {
			return logs.FilterMessageSnippet("ignores its cancelled context").Len() == 1
		}, "its session is lost")
		close(release)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "its result counts")
		err := stop(t, ib, 5*time.Second)
		if err != nil {
			require.NotContains(t, err.Error(), "handlers still run")
		}
	})
}

// Contract 5.9: a worker's first heartbeat is stored without an answer, and others declare it dead before its next try.
func TestWorkerReleasedBeforeItHasBegunBeginsUnderANewID(t *testing.T) {
	d, proxy, db := behindProxy(t)
	ib := inboxtest.New(t, db, inbox.Configure(func(o *inbox.Options) { o.Processor.HeartbeatInterval = 2 * time.Second }),
		inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
	proxy.Lose(pgproxy.AnswerLost, 1, pgproxy.Containing("INSERT", "inbox_workers"))
	inboxtest.Start(t, ib)
	inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 1 }, "its row is stored")
	require.Zero(t, proxy.Left())
	first := workers(t, d)[0].ID
	require.NoError(t, d.DB.Exec("UPDATE inbox_workers SET released_at = heartbeat_at").Error)
	inboxtest.Accept(t, ib, "1")
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it works")
	require.Len(t, workers(t, d), 2)
	require.NotEqual(t, first, ib.Health().Processor.WorkerID)
}
