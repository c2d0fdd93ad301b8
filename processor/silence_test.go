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
)

// lag is what a busy machine may add to a moment.
const lag = 700 * time.Millisecond

// silence sets a worker's timeout, and sweeps of that interval.
func silence(timeout, sweeps time.Duration) inbox.Option {
	o := inbox.DefaultOptions()
	o.Migrate = true
	p := &o.Processor
	p.HeartbeatInterval, p.SweepInterval, p.WorkerTimeout = 100*time.Millisecond, sweeps, timeout
	p.RestartDelay, p.GroupWindow, p.StopBudget, p.MaxRetryDelay = 50*time.Millisecond, time.Millisecond, time.Second, 100*time.Millisecond
	p.PollingInterval = time.Hour
	return inbox.WithOptions(o)
}

// Contract 5.9: a worker without a successful heartbeat stops claiming after
// two thirds of WorkerTimeout, cancels its handlers at WorkerTimeout and
// returns under a new worker ID.
func TestSilentWorkerStopsClaimingThenCancelsThenReturns(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const timeout = 3600 * time.Millisecond
		var mu sync.Mutex
		started := map[string]time.Time{} // by message ID, the first start
		starts := map[string]int{}
		running, cancelled := make(chan time.Time, 10), make(chan time.Time, 10)
		ib := inboxtest.New(t, d.DB, silence(timeout, time.Minute), inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			mu.Lock()
			starts[m.ID]++
			again := starts[m.ID] > 1
			if !again {
				started[m.ID] = time.Now()
			}
			mu.Unlock()
			if m.ID != "long" || again {
				return nil
			}
			running <- time.Now()
			<-ctx.Done()
			cancelled <- time.Now()
			return ctx.Err()
		})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "long")
		inboxtest.Receive(t, running, "the long handler")
		first := workers(t, d)
		before := time.Now()
		allow := refuseHeartbeats(t, d)
		refused := time.Now() // its last heartbeat lies between these, or shortly before
		accepted := map[string]time.Time{}
		var end time.Time
		for n := 0; end.IsZero(); n++ {
			id := fmt.Sprint(n)
			inboxtest.Accept(t, ib, id)
			accepted[id] = time.Now()
			select {
			case end = <-cancelled:
			default:
				pause(t, 50*time.Millisecond)
			}
		}
		require.GreaterOrEqual(t, end.Sub(before), timeout-lag, "its handlers are cancelled not before the timeout")
		require.LessOrEqual(t, end.Sub(refused), timeout+lag, "nor much later")
		mu.Lock()
		last := before
		for id, at := range started {
			if id != "long" && at.Before(end) && at.After(last) {
				last = at
			}
		}
		mu.Unlock()
		require.GreaterOrEqual(t, last.Sub(before), timeout*2/3-lag, "until two thirds of the timeout it claims")
		require.LessOrEqual(t, last.Sub(refused), timeout*2/3+lag, "then no more")

		pause(t, 300*time.Millisecond) // it tries to return and cannot
		allow()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		all := workers(t, d)
		require.Len(t, all, 2)
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

// Contract 5.9, 4.7: nobody has declared the worker dead, so it goes on as it
// is, and what it left unclaimed does not wait for the poll.
func TestWorkerWhoseHeartbeatIsLateClaimsAgainAtOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const timeout = 4500 * time.Millisecond
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(timeout, time.Minute), inboxtest.Handlers(
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
		back := time.Now()
		require.Equal(t, "late", inboxtest.Receive(t, ran, "the message that waited"))
		require.Less(t, time.Since(back), lag+100*time.Millisecond)
		require.Len(t, workers(t, d), 1, "it is the same worker")
	})
}

// Contract 5.9: dead is who is silent on two sweeps in a row.
func TestWorkerIsNotDeclaredDeadByOneLook(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const sweeps = time.Second
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(time.Second, sweeps), inboxtest.Handlers(
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

// Contract 5.9: each look counts only after the sweeper's own heartbeat: who is
// cut off itself must not judge others by what it cannot see.
func TestWorkerThatCannotHeartbeatDeclaresNobodyDead(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const sweeps = 700 * time.Millisecond
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, silence(20*time.Second, sweeps), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { ran <- m.ID; return nil })))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		claim(t, d, system, vanishing, 1, "h")
		silentFor(t, d, vanishing, time.Hour)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 2 }, "the worker registered")
		allow := refuseHeartbeats(t, d)
		pause(t, 4*sweeps)
		require.Empty(t, ran)
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").AbandonedCount)
		allow()
		inboxtest.Receive(t, ran, "the recovered message")
	})
}

// silentFor makes a worker's last sign of life that long ago.
func silentFor(t *testing.T, d *inboxtest.Database, workerID string, since time.Duration) {
	t.Helper()
	inboxtest.Exec(t, d.DB, "UPDATE inbox_workers SET heartbeat_at = ? WHERE id = ?", time.Now().UTC().Add(-since), workerID)
}

// A handler that returns after its session was lost does not still run.
func TestStopForgetsHandlersOfALostSessionThatHaveReturned(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		running, release := make(chan struct{}, 10), make(chan struct{})
		observe, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, silence(time.Second, time.Minute), observe, inboxtest.Handlers(
			inboxtest.Do("deaf", func(context.Context, inboxtest.Bytes) error { running <- struct{}{}; <-release; return nil })))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, running, "the handler")
		refuseHeartbeats(t, d)
		inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet("ignores its cancelled context").Len() == 1 }, "its session is lost")
		close(release)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "its result counts")
		_, err := stop(t, ib, 5*time.Second)
		if err != nil {
			require.NotContains(t, err.Error(), "handlers still run")
		}
	})
}
