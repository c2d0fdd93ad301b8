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

// TestWorkersWithWrongClocksRunEachMessageOnce proves contract 3.5: leases and
// heartbeats use the database's clock.
func TestWorkersWithWrongClocksRunEachMessageOnce(t *testing.T) {
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

// TestWrongClockDoesNotDelayRecoveryOfAKilledWorker checks that a wrong clock neither
// delays nor hastens the recovery of a dead worker's claims.
func TestWrongClockDoesNotDelayRecoveryOfAKilledWorker(t *testing.T) {
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

// TestClockThatIsSetWhileItsWorkerRunsChangesNothing proves contract 3.5: a worker reports that its clock is wrong,
// goes on, and is not declared dead.
func TestClockThatIsSetWhileItsWorkerRunsChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	producer := r.newInbox(r.settings.DSN)
	jumps, right := r.worker(unhurried), r.worker(unhurried)
	for _, to := range []struct {
		ahead time.Duration
		line  string
	}{{time.Hour, "clock is not the database's"}, {0, "clock agrees"}, {-time.Hour, "clock is not the database's"}} {
		logged := func() int {
			n, err := jumps.Logged(to.line)
			require.NoError(t, err)
			return n
		}
		before := logged()
		require.NoError(t, jumps.SetClock(to.ahead))
		r.accept(producer, r.jobs(30, mixed)...)
		r.await("the worker reports what its clock shows", func() bool { return logged() > before })
	}
	r.awaitSettled()
	require.Zero(t, r.verdict().Reruns, "nothing runs twice")
	require.Zero(t, r.number(`SELECT count(*) FROM inbox_workers WHERE released_at IS NOT NULL`), "none is declared dead")
	require.True(t, jumps.Running() && right.Running())
}

// TestWrongClocksDoNotShiftRetries proves contract 3.5: a worker writes and judges
// due times by the database's clock.
func TestWrongClocksDoNotShiftRetries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		offset time.Duration
	}{{"an hour ahead", time.Hour}, {"an hour behind", -time.Hour}} {
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
				WHERE abs(extract(epoch FROM next_attempt_at - clock_timestamp())) < 60`))
			_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
			require.NoError(t, err)
			r.worker(clock(-c.offset))
			r.awaitSettled()
			require.Zero(t, r.verdict().Reruns)
		})
	}
}
