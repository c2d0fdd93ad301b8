package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// leisurely leaves enough time between two attempts to stop a worker.
func leisurely(s *workload.Settings) { s.RetryDelay = 2 * time.Second }

// clock sets a worker's clock wrong by offset.
func clock(offset time.Duration) func(*workload.Settings) {
	return func(s *workload.Settings) { s.ClockOffset = offset }
}

// TestWorkersWithWrongClocksRunEachMessageOnceAndNoneIsDeclaredDead proves contract 3.5: leases and
// heartbeats use the database's clock.
func TestWorkersWithWrongClocksRunEachMessageOnceAndNoneIsDeclaredDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	right := r.newInbox(r.settings.DSN)
	var workers []*workload.Worker
	for _, offset := range []time.Duration{0, time.Hour, -time.Hour} {
		workers = append(workers, r.worker(unhurried, clock(offset)))
	}
	for range 4 {
		r.accept(right, r.jobs(50, mixed)...)
		for _, offset := range []time.Duration{time.Hour, -time.Hour} {
			settings := r.settings
			settings.ClockOffset = offset
			r.accept(r.inboxOf(settings), r.jobs(25, mixed)...)
		}
	}
	r.awaitSettled()
	require.Zero(t, r.verdict().Reruns, "nothing runs twice")
	require.Equal(t, 3, r.number(`SELECT count(DISTINCT pid) FROM runs`), "every worker has done some")
	require.Zero(t, r.number(`SELECT count(*) FROM inbox_workers WHERE released_at IS NOT NULL`),
		"no worker is declared dead")
	for _, w := range workers {
		require.NoError(t, w.Terminate())
	}
	for _, w := range workers {
		require.NoError(t, w.Wait(patience))
		counters, err := w.Counters()
		require.NoError(t, err)
		require.Zero(t, counters.Fenced)
		require.Zero(t, counters.Recovered)
	}
}

// TestClaimsOfKilledWorkerWithAWrongClockResumeWithinTheBound checks that a wrong clock neither
// delays nor hastens the recovery of a dead worker's claims.
func TestClaimsOfKilledWorkerWithAWrongClockResumeWithinTheBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		victim, successor time.Duration
	}{
		{"an hour ahead", time.Hour, 0}, {"an hour behind", -time.Hour, 0},
		{"its successor's ahead", 0, time.Hour}, {"its successor's behind", 0, -time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			victim := r.worker(clock(c.victim))
			r.accept(r.newInbox(r.settings.DSN), r.jobs(5, same(workload.Job{DelayMS: 20_000}))...)
			r.await("the victim runs all of them", func() bool {
				return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, victim.PID()) == 5
			})
			_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
			require.NoError(t, err)
			r.worker(clock(c.successor))
			pause(t.Context(), r.settings.WorkerTimeout)
			require.Equal(t, 5, r.number(`SELECT count(*) FROM runs`), "it lives and keeps its claims")
			require.NoError(t, victim.Kill())
			killed := time.Now()
			r.awaitSettled()
			require.LessOrEqual(t, time.Since(killed), r.settings.RecoveryBound()+slack)
			require.Equal(t, 5, r.verdict().Reruns)
		})
	}
}

// TestRetriesAreDueByTheClocksOfTheirWorkers proves contract 3.5: each worker judges due times by
// its own clock. The time of a retry is written with the clock of the worker whose attempt failed.
func TestRetriesAreDueByTheClocksOfTheirWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		offset time.Duration
		waits  bool // workers with correct clocks wait
	}{{"an hour ahead", time.Hour, true}, {"an hour behind", -time.Hour, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			wrong := r.worker(leisurely, clock(c.offset))
			r.accept(r.newInbox(r.settings.DSN), r.jobs(2, same(workload.Job{Fails: 45}))...)
			r.await("the worker itself tries again in time", func() bool {
				return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count >= 2`) == 4
			})
			require.NoError(t, wrong.Terminate())
			require.NoError(t, wrong.Wait(patience))
			require.Equal(t, 4, r.number(`SELECT count(*) FROM inbox_handler_statuses
				WHERE abs(extract(epoch FROM next_attempt_at - clock_timestamp()) - $1) < 60`, c.offset.Seconds()))
			_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
			require.NoError(t, err)
			before := r.statuses()
			r.worker()
			if c.waits {
				pause(t.Context(), time.Second)
				require.Equal(t, before, r.statuses(), "for a worker whose clock is right it is due in an hour")
				r.worker(clock(c.offset)) // due at once for a worker with the same clock
			}
			r.awaitSettled()
			require.Zero(t, r.verdict().Reruns)
		})
	}
}

// TestWorkerWhoseClockIsSlowRunsNewMessagesAndLeavesRetriesAlone checks that new messages are due
// at once whatever the worker's clock says, and that retries of other workers are due only when its
// own clock has reached their time.
func TestWorkerWhoseClockIsSlowRunsNewMessagesAndLeavesRetriesAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	right := r.worker(leisurely)
	producer := r.newInbox(r.settings.DSN)
	r.accept(producer, r.jobs(2, same(workload.Job{Fails: 45}))...)
	r.await("attempts fail", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count > 0`) == 4
	})
	require.NoError(t, right.Terminate())
	require.NoError(t, right.Wait(patience))
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	behind := r.worker(clock(-time.Hour))
	before := r.statuses()
	r.accept(producer, r.jobs(5, same(workload.Job{}))...)
	r.await("the new ones complete", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL`) == 10
	})
	require.Equal(t, before, r.statusesUpTo("m-000002"), "the retries wait")
	r.worker() // a worker with a correct clock runs them
	r.awaitSettled()
	require.Zero(t, r.verdict().Reruns)
	require.Equal(t, 5, r.number(`SELECT count(*) FROM effects WHERE pid = $1 AND message_id > 'm-000002'`, behind.PID()))
}
