package endtoend

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// TestWorkersThatComeAndGoNeverExceedTheFleetsConcurrency proves contract 5.18: workers start, stop in order, are
// killed, and are frozen past their timeout, and at no moment more calls run than the limit allows.
func TestWorkersThatComeAndGoNeverExceedTheFleetsConcurrency(t *testing.T) {
	t.Parallel()
	const limit = 4
	r := newRig(t)
	r.settings.FleetConcurrency, r.settings.WorkerTimeout = limit, 5*time.Second
	producer := r.newInbox(r.settings.DSN)
	// gone says when workers were killed or frozen, by the database's clock. Calls that ran then write nothing more.
	gone := map[int]time.Time{}
	runs := func(w *workload.Worker) func() bool {
		return func() bool { return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, w.PID()) > 0 }
	}
	more := func() { r.accept(producer, r.jobs(60, same(workload.Job{DelayMS: 100}))...) }

	first := r.worker()
	more()
	r.await("the first runs", runs(first))
	second := r.worker()
	r.await("the second has its part", runs(second))
	more()
	require.NoError(t, first.Terminate())
	require.NoError(t, first.Wait(patience))
	third := r.worker()
	r.await("the third has the first one's part", runs(third))
	more()
	require.NoError(t, second.Kill())
	gone[second.PID()] = r.now()
	fourth := r.worker()
	r.await("the fourth has the killed one's part", runs(fourth))
	more()
	require.NoError(t, third.Freeze())
	gone[third.PID()] = r.now()
	frozen := r.number(`SELECT count(*) FROM runs WHERE pid = $1`, third.PID())
	more()
	r.await("the others have the frozen one's part", func() bool { return r.held(third) == 0 })
	r.awaitSettled()
	require.NoError(t, third.Thaw())
	more()
	r.await("the thawed one is back", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1 AND step = 'began'`, third.PID()) > frozen
	})
	r.awaitSettled()
	r.verdict()
	require.Equal(t, limit, r.mostAtOnce(gone))
}

// now returns the database's time.
func (r *rig) now() time.Time {
	r.t.Helper()
	var now time.Time
	require.NoError(r.t, r.db.QueryRowContext(r.t.Context(), `SELECT clock_timestamp()`).Scan(&now))
	return now
}

// held returns how many portions of the limit a worker holds.
func (r *rig) held(w *workload.Worker) int {
	r.t.Helper()
	return r.number(fmt.Sprintf(`SELECT count(*) FROM inbox_locks l JOIN inbox_workers w ON w.id = l.owner_id
		WHERE l.name LIKE 'limit:%s:%%' AND w.pid = $1`, workload.RunKey), w.PID())
}

// mostAtOnce returns how many calls of the plain handler ran at once, at most. The calls of a worker that is gone ended
// then, unless they had written so.
func (r *rig) mostAtOnce(gone map[int]time.Time) (most int) {
	r.t.Helper()
	type call struct {
		id  string
		pid int
	}
	rows, err := r.db.QueryContext(r.t.Context(), `SELECT message_id, pid, step, at FROM runs ORDER BY at`)
	require.NoError(r.t, err)
	defer rows.Close()
	running := map[call]time.Time{} // since when
	for rows.Next() {
		var c call
		var step string
		var at time.Time
		require.NoError(r.t, rows.Scan(&c.id, &c.pid, &step, &at))
		for other, since := range running {
			if end, ended := gone[other.pid]; ended && since.Before(end) && at.After(end) {
				delete(running, other)
			}
		}
		if step == "began" {
			running[c] = at
		} else {
			delete(running, c)
		}
		most = max(most, len(running))
	}
	require.NoError(r.t, rows.Err())
	return most
}
