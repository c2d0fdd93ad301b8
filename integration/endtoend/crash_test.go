package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// slack is how much longer than its bound something may take on a busy machine. A recovery that
// misses its trigger, such as a claim that is found only by its age, takes minutes.
const slack = 30 * time.Second

// TestClaimsOfKilledWorkerResumeElsewhereWithinTheBound proves contract 2 ("crash") and 5.9.
func TestClaimsOfKilledWorkerResumeElsewhereWithinTheBound(t *testing.T) {
	t.Parallel()
	checkClaimsOfKilledWorkerResume(newRig(t))
}

func checkClaimsOfKilledWorkerResume(r *rig) {
	t := r.t
	victim := r.worker()
	r.accept(r.newInbox(r.settings.DSN), r.jobs(8, same(workload.Job{DelayMS: 20_000}))...)
	r.await("the victim runs all of them", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, victim.PID()) == 8 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 16
	})
	// The successor gets only quick work, because the payloads that it runs again are changed.
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	successor := r.worker()
	killed := time.Now()
	require.NoError(t, victim.Kill())
	r.awaitSettled()

	took := r.lines(`SELECT max(extract(epoch FROM at))::text FROM (
		SELECT at FROM runs WHERE pid = $1 AND step = 'began' UNION ALL SELECT at FROM effects WHERE pid = $1) resumed`, successor.PID())
	last, err := time.ParseDuration(took[0] + "s")
	require.NoError(t, err)
	resumed := time.Unix(0, int64(last)).Sub(killed)
	t.Logf("all 16 claims resumed %s after the kill, bound %s", resumed, r.settings.RecoveryBound())
	require.LessOrEqual(t, resumed, r.settings.RecoveryBound()+slack)
	require.Equal(t, 8, r.verdict().Reruns, "each plain run was interrupted once")
	require.Equal(t, 16, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count = 0`),
		"a crash charges nothing")
}

// TestWorkerFrozenPastItsTimeoutChangesNothing proves contract 2 ("a resumed stale worker changes
// nothing") and 5.10. The worker is frozen inside transactions. Their row locks block recovery
// until the successor has ended them.
func TestWorkerFrozenPastItsTimeoutChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stale := r.worker()
	// Stubborn handlers return nil although their context was cancelled. Only the version keeps
	// their result from the row.
	job := workload.Job{DelayMS: 4_000, Stubborn: true}
	r.accept(r.newInbox(r.settings.DSN), r.jobs(6, same(job))...)
	r.await("the worker runs all of them, in open transactions", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, stale.PID()) == 6 &&
			r.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) >= 6 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 12
	})
	require.NoError(t, stale.Freeze())
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	successor := r.worker()
	r.awaitSettled() // the stale worker is still frozen
	require.Equal(t, 6, r.number(`SELECT count(*) FROM effects WHERE pid = $1`, successor.PID()))
	require.Equal(t, 6, r.number(`SELECT count(*) FROM effects`))
	before := r.statuses()

	require.NoError(t, stale.Thaw())
	r.await("its stubborn handlers have ended", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1 AND step = 'done'`, stale.PID()) == 6
	})
	r.await("it is back under a new worker ID", func() bool {
		return r.number(`SELECT count(*) FROM inbox_workers WHERE pid = $1`, stale.PID()) == 2
	})
	// Wait here, because a stop does not wait for handlers of an earlier worker ID.
	r.await("each of its results was found stale", func() bool {
		n, err := stale.Logged("result of a stale claim changed nothing")
		require.NoError(t, err)
		return n == 12
	})
	require.NoError(t, stale.Terminate())
	require.NoError(t, stale.Wait(patience))
	require.Equal(t, before, r.statuses())
	require.Equal(t, 6, r.number(`SELECT count(*) FROM effects`), "exactly once")
	require.Equal(t, 6, r.verdict().Reruns)
	require.Equal(t, 6, r.number(`SELECT count(*) FROM runs WHERE pid = $1 AND step = 'done'`, successor.PID()),
		"the successor ran each once")
	require.Equal(t, 12,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count = 0 AND abandoned_count = 0`),
		"nothing is charged")
	for _, rerun := range r.lines(`SELECT message_id || ': ' || string_agg(step || ' by ' || CASE pid WHEN $1 THEN 'the stale worker' ELSE 'its successor' END, ', ' ORDER BY at)
		FROM runs GROUP BY message_id ORDER BY message_id`, stale.PID()) {
		t.Log(rerun)
	}
	counters, err := stale.Counters()
	require.NoError(t, err)
	require.EqualValues(t, 12, counters.Fenced, "each result of the stale worker")
	require.Zero(t, counters.Processed)
}
