package endtoend

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

var losses = []struct {
	name string
	how  pgproxy.Fault
	done bool // the database has committed
}{
	{"the answer is lost", pgproxy.AnswerLost, true},
	{"the request is lost", pgproxy.RequestLost, false},
	{"the answer never comes", pgproxy.AnswerSilent, true},
	{"the connection is lost meanwhile", pgproxy.ConnectionLost, true},
}

// start runs an inbox in this process until the test ends.
func (r *rig) start(ib *inbox.Inbox) {
	r.t.Helper()
	require.NoError(r.t, ib.Start(r.t.Context()))
	r.t.Cleanup(func() { require.NoError(r.t, ib.Stop(r.t.Context())) })
}

// claimedAndCompleted is the version of a status that was claimed once and completed by that claim.
// The first version is 1.
const claimedAndCompleted = 3

// TestHandlerCommitWithLostResponseHappensOnce proves contract 5.10: a commit with
// unknown outcome is resolved by reading back.
func TestHandlerCommitWithLostResponseHappensOnce(t *testing.T) {
	t.Parallel()
	for _, c := range losses {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			unhurried(&r.settings) // a worker that is taken for dead would run messages again
			proxy := pgproxy.New(t, r.settings.DSN)
			r.accept(r.newInbox(r.settings.DSN), r.jobs(20, same(workload.Job{}))...)
			proxy.LoseCommits(c.how, 6)
			r.start(r.newInbox(proxy.DSN())) // only its transactional handlers commit explicitly
			r.awaitSettled()
			require.Zero(t, proxy.Left(), "the losses took place")
			r.verdict()
			require.Equal(t, 20,
				r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = $1 AND error_count = 0 AND abandoned_count = 0`, workload.EffectKey),
				"the handlers are not to blame")
			again := r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = $1 AND version > $2`,
				workload.EffectKey, claimedAndCompleted)
			if c.done {
				require.Zero(t, again, "what had committed is not run again")
			} else {
				require.NotZero(t, again, "what had not committed was released and claimed again")
			}
		})
	}
}

// TestAcceptWithLostResponseLeavesOneRow proves contract 4.1 and 2: accepting again is safe, whatever
// the outcome of the first attempt.
func TestAcceptWithLostResponseLeavesOneRow(t *testing.T) {
	t.Parallel()
	for _, c := range losses {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			unhurried(&r.settings) // a worker that is taken for dead would run messages again
			proxy := pgproxy.New(t, r.settings.DSN)
			ib := r.newInbox(proxy.DSN())
			messages := r.jobs(10, same(workload.Job{}))
			for _, m := range messages {
				r.ledger.Produced(m.ID)
			}
			proxy.LoseCommits(c.how, 1)
			results, err := ib.Accept(t.Context(), messages...)
			require.Error(t, err)
			require.Nil(t, results)
			require.Zero(t, proxy.Left())

			results, err = ib.Accept(t.Context(), messages...)
			require.NoError(t, err)
			want := handler.OutcomeAccepted
			if c.done {
				want = handler.OutcomeDuplicate
			}
			for _, result := range results {
				require.Equal(t, want, result.Outcome)
			}
			r.start(ib)
			r.awaitSettled()
			require.Zero(t, r.verdict().Reruns)
		})
	}
}

// TestResponsesLostAtRandomUnderLoad proves contract 5.9 and 5.10: responses to claims, completions,
// releases, heartbeats and accepts may be lost as well.
func TestResponsesLostAtRandomUnderLoad(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("seed %d", seed+1), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			unhurried(&r.settings)
			r.settings.StatementTimeout = 500 * time.Millisecond // lost claims are reconciled after twice this
			proxy := pgproxy.New(t, r.settings.DSN)
			ib := r.newInbox(proxy.DSN())
			r.start(ib)
			proxy.LoseAnswers(seed + 1)
			for range 15 {
				r.accept(ib, r.jobs(20, mixed)...)
				pause(t.Context(), 50*time.Millisecond)
			}
			r.await("plenty is lost", func() bool { return proxy.AnswersLost() >= 10 })
			proxy.LoseAnswers(0)
			r.awaitSettled()
			v := r.verdict()
			t.Logf("%d answers lost, %d reruns", proxy.AnswersLost(), v.Reruns)
			require.Zero(t, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE abandoned_count > 0`),
				"the worker lived")
		})
	}
}

// TestPartitionedWorkerIsReplacedAndChangesNothing proves contract 2 ("partition"): a worker that
// is cut off from the database is replaced, and changes nothing when it is back.
func TestPartitionedWorkerIsReplacedAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	proxy := pgproxy.New(t, r.settings.DSN)
	// Only the plain handler runs. The next test covers the transactional one.
	producer := r.newInbox(r.settings.DSN)
	require.NoError(t, producer.Pause(t.Context(), workload.EffectKey))
	isolated := r.worker(func(s *workload.Settings) { s.DSN, s.EffectsDSN = proxy.DSN(), r.settings.DSN })
	r.accept(producer, r.jobs(6, same(workload.Job{DelayMS: 3_000, Stubborn: true}))...)
	r.await("the worker runs all of them", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, isolated.PID()) == 6
	})
	proxy.Partition()
	cut := time.Now()
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	successor := r.worker()
	r.await("the successor completes them", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = $1 AND completed_at IS NOT NULL`,
			workload.RunKey) == 6
	})
	t.Logf("replaced after %s, bound %s", time.Since(cut), r.settings.RecoveryBound())
	require.LessOrEqual(t, time.Since(cut), r.settings.RecoveryBound()+slack)
	require.Equal(t, 6, r.number(`SELECT count(*) FROM runs WHERE pid = $1 AND step = 'done'`, successor.PID()))
	r.await("its stubborn handlers have ended", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1 AND step = 'done'`, isolated.PID()) == 6
	})
	before := r.statuses()
	proxy.Heal()
	r.await("it is back under a new worker ID", func() bool {
		return r.number(`SELECT count(*) FROM inbox_workers WHERE pid = $1`, isolated.PID()) == 2
	})
	require.NoError(t, isolated.Terminate())
	require.NoError(t, isolated.Wait(patience), "its last results are written")
	require.Equal(t, before, r.statuses())
}

// TestTransactionsOfAPartitionedWorkerAreEnded covers a worker behind a partition: the server would
// keep its transactions open, with their row locks, until TCP times out.
func TestTransactionsOfAPartitionedWorkerAreEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	proxy := pgproxy.New(t, r.settings.DSN)
	producer := r.newInbox(r.settings.DSN)
	isolated := r.worker(func(s *workload.Settings) { s.DSN, s.EffectsDSN = proxy.DSN(), r.settings.DSN })
	r.accept(producer, r.jobs(6, same(workload.Job{DelayMS: 60_000}))...)
	r.await("the worker runs all of them, in open transactions", func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, isolated.PID()) == 6 &&
			r.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) >= 6
	})
	proxy.Partition()
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`) // quick from now on
	require.NoError(t, err)
	r.worker()
	r.await("the successor completes plain and transactional handlers", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL`) == 12
	})
	require.Equal(t, 6, r.number(`SELECT count(*) FROM effects`))
	require.NoError(t, isolated.Kill())
}
