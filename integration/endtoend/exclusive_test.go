package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/processor"
)

// TestKilledHolderOfTheLockIsReplacedWithinTheBound proves contract 5.3: one worker processes at a
// time, and another one takes over when it is killed.
func TestKilledHolderOfTheLockIsReplacedWithinTheBound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	exclusive := func(s *workload.Settings) { s.Mode, s.WorkerTimeout = processor.ModeExclusive, 6*time.Second }
	holder := r.worker(exclusive)
	r.await("the first worker holds the lock", func() bool { return r.number(`SELECT count(*) FROM inbox_locks WHERE name = 'processor'`) == 1 })
	standby := []*workload.Worker{r.worker(exclusive), r.worker(exclusive)}
	r.await("the others stand by", func() bool { return r.number(`SELECT count(*) FROM inbox_workers`) == 3 })
	producer := r.newInbox(r.settings.DSN)
	for range 3 {
		r.accept(producer, r.jobs(100, mixed)...)
	}
	r.awaitSettled()
	require.Equal(t, 1, r.number(`SELECT count(DISTINCT pid) FROM runs`), "one of three runs everything")
	require.Equal(t, 1, r.number(`SELECT count(DISTINCT pid) FROM effects`))
	require.Equal(t, holder.PID(), r.number(`SELECT min(pid) FROM runs`))

	r.accept(producer, r.jobs(8, same(workload.Job{DelayMS: 20_000}))...)
	r.await("the holder runs all of them", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE message_id > 'm-000300'`) == 8 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 16
	})
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}' WHERE id > 'm-000300'`)
	require.NoError(t, err)
	killed := time.Now()
	require.NoError(t, holder.Kill())
	r.accept(producer, r.jobs(1, same(workload.Job{}))...)
	r.await("another runs what is new", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE message_id = 'm-000309' AND step = 'done'`) == 1
	})
	taken := time.Since(killed)
	t.Logf("taken over %s after the kill", taken)
	const bound = 6*time.Second + 2*time.Second // WorkerTimeout and one try
	require.LessOrEqual(t, taken, bound+slack)
	r.awaitSettled()
	require.Equal(t, 8, r.verdict().Reruns, "each plain run was interrupted once")
	require.Zero(t,
		r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE message_id > 'm-000300' AND error_count > 0`),
		"a crash charges nothing")
	require.Equal(t, 2, r.number(`SELECT count(DISTINCT pid) FROM runs`), "one of the others has done it all")

	// A stop releases the lock, so the last worker takes over with its next try.
	successor := r.number(`SELECT pid FROM runs WHERE pid <> $1 LIMIT 1`, holder.PID())
	if standby[0].PID() != successor {
		standby[0], standby[1] = standby[1], standby[0]
	}
	require.NoError(t, standby[0].Terminate())
	require.NoError(t, standby[0].Wait(patience))
	require.Zero(t,
		r.number(`SELECT count(*) FROM inbox_locks WHERE owner_id IN (SELECT id FROM inbox_workers WHERE stopped_at IS NOT NULL)`), "it did not let it run out")
	r.accept(producer, r.jobs(1, same(workload.Job{}))...)
	r.await("the last one runs it", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, standby[1].PID()) > 0
	})
	r.awaitSettled()
	require.Equal(t, 8, r.verdict().Reruns, "a stop interrupts nothing")
}
