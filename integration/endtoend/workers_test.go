package endtoend

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// unhurried sets heartbeats that a busy machine does not miss, for tests that count reruns of
// living workers.
func unhurried(s *workload.Settings) {
	s.WorkerTimeout, s.StatementTimeout = patience, 5*time.Second
}

// TestWorkersTogetherRunEachMessageOnce proves contract 5.3: many workers claim disjoint
// rows.
func TestWorkersTogetherRunEachMessageOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d workers", n), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var workers []*workload.Worker
			for range n {
				workers = append(workers, r.worker(unhurried))
			}
			producer := r.newInbox(r.settings.DSN)
			for range 10 {
				r.accept(producer, r.jobs(100, mixed)...)
			}
			r.awaitSettled()
			v := r.verdict()
			require.Equal(t, 0, v.Reruns)
			require.Equal(t, 40, v.Poisoned)
			require.Equal(t, n, r.number(`SELECT count(DISTINCT pid) FROM runs`), "every worker has done some")
			for _, w := range workers {
				require.NoError(t, w.Terminate())
			}
			for _, w := range workers {
				require.NoError(t, w.Wait(patience))
			}
			require.Equal(t, n, r.number(`SELECT count(*) FROM inbox_workers WHERE stopped_at IS NOT NULL`))
		})
	}
}

// TestTerminatedWorkerChargesNothingAndLeavesNoClaim proves contract 2 ("graceful stop") and 5.8.
func TestTerminatedWorkerChargesNothingAndLeavesNoClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	worker := r.worker(unhurried)
	producer := r.newInbox(r.settings.DSN)
	// Some handlers return within the soft budget (3 s), some must be interrupted.
	quick := r.jobs(4, same(workload.Job{DelayMS: 1_500}))
	slow := r.jobs(4, same(workload.Job{DelayMS: 60_000}))
	r.accept(producer, append(quick, slow...)...)
	r.await("all run", func() bool {
		return r.number(`SELECT count(*) FROM runs`) == 8 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 16
	})
	// Work that waits in memory or in the database must not be lost.
	r.accept(producer, r.jobs(200, same(workload.Job{}))...)
	require.NoError(t, worker.Terminate())
	require.NoError(t, worker.Wait(patience))

	require.Zero(t,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL OR worker_id IS NOT NULL AND completed_at IS NULL`), "no claim is left")
	require.Zero(t, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count > 0 OR abandoned_count > 0`),
		"nothing is charged")
	require.Equal(t, 8,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL AND message_id <= 'm-000004'`),
		"handlers that return in time complete")
	require.Zero(t,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL AND message_id BETWEEN 'm-000005' AND 'm-000008'`))
	require.Equal(t, 1, r.number(`SELECT count(*) FROM inbox_workers WHERE stopped_at IS NOT NULL`))

	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	next, restarted := r.worker(unhurried), time.Now()
	r.awaitSettled()
	t.Logf("the rest took %s", time.Since(restarted))
	require.Less(t, time.Since(restarted), patience/2, "released claims wait for no timeout")
	require.Equal(t, 4, r.verdict().Reruns, "the interrupted ones")
	require.NoError(t, next.Terminate())
	require.NoError(t, next.Wait(patience))
}

// TestWorkerStoppedTwiceStopsOnceAndInOrder proves contract 5.8: a second signal, from a
// supervisor or an operator who presses ^C twice, neither aborts nor hastens the stop.
func TestWorkerStoppedTwiceStopsOnceAndInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	worker := r.worker(unhurried)
	// Some handlers return within the soft budget (3 s), some must be interrupted.
	r.accept(r.newInbox(r.settings.DSN), append(r.jobs(3, same(workload.Job{DelayMS: 2_000})),
		r.jobs(3, same(workload.Job{DelayMS: 60_000}))...)...)
	r.await("all run", func() bool {
		return r.number(`SELECT count(*) FROM runs`) == 6 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 12
	})
	asked := time.Now()
	require.NoError(t, worker.Terminate())
	for range 3 {
		pause(t.Context(), 300*time.Millisecond)
		require.NoError(t, worker.Terminate())
		require.NoError(t, worker.Interrupt())
	}
	require.NoError(t, worker.Wait(patience), "its exit status is 0")
	t.Logf("stopped after %s", time.Since(asked))
	require.GreaterOrEqual(t, time.Since(asked), 2*time.Second, "the handlers had their time")
	require.LessOrEqual(t, time.Since(asked), r.settings.StopDeadline()+slack)
	require.Equal(t, 6,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL AND message_id <= 'm-000003'`),
		"results are stored")
	require.Equal(t, 12,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NULL AND error_count = 0 AND abandoned_count = 0`),
		"nothing is left claimed or charged")
	require.Equal(t, 1, r.number(`SELECT count(*) FROM inbox_workers WHERE stopped_at IS NOT NULL`))
	counters, err := worker.Counters()
	require.NoError(t, err)
	require.EqualValues(t, 6, counters.Processed)
	require.EqualValues(t, 6, counters.Released)
}

// TestWorkersComeAndGoUnderLoad proves contract 5.8 for a deploy under load.
func TestWorkersComeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	producer := r.newInbox(r.settings.DSN)
	worker := r.worker(unhurried)
	for range 4 {
		r.accept(producer, r.jobs(150, mixed)...)
		next := r.worker(unhurried)
		require.NoError(t, worker.Terminate())
		require.NoError(t, worker.Wait(patience))
		worker = next
	}
	r.awaitSettled()
	require.Equal(t, 0, r.verdict().Reruns, "handlers that fit into the stop's budget are never interrupted")
	require.Zero(t, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE abandoned_count > 0`))
}
