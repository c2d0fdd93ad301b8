package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// TestClaimsOfKilledWorkerResumeElsewhereOnMariaDB proves contract 2 ("crash") and 5.9 there: the server rolls the
// transactions of a killed worker back, and another one takes its claims over, uncharged.
func TestClaimsOfKilledWorkerResumeElsewhereOnMariaDB(t *testing.T) {
	t.Parallel()
	newRigOnMySQL(t, disturbedMariaDB(t)).claimsOfKilledWorkerResume()
}

func (r *rig) claimsOfKilledWorkerResume() {
	t := r.t
	t.Helper()
	victim := r.worker()
	r.accept(r.newInbox(r.settings.DSN), r.jobs(8, same(workload.Job{DelayMS: 20_000}))...)
	require.Eventually(t, func() bool {
		return r.number(`SELECT count(*) FROM runs WHERE pid = $1`, victim.PID()) == 8 &&
			r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE processing_started_at IS NOT NULL`) == 16
	}, patience, 50*time.Millisecond)
	// The successor gets only quick work, because the payloads that it runs again are changed.
	_, err := r.db.ExecContext(t.Context(), `UPDATE inbox_messages SET content = '{}'`)
	require.NoError(t, err)
	successor := r.worker()
	killed := time.Now()
	require.NoError(t, victim.Kill())
	r.awaitSettled()
	require.LessOrEqual(t, time.Since(killed), r.settings.RecoveryBound()+slack)
	require.Equal(t, 8, r.number(`SELECT count(*) FROM effects WHERE pid = $1`, successor.PID()))
	require.Equal(t, 8, r.verdict().Reruns, "each plain run was interrupted once")
	require.Equal(t, 16, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count = 0`), "a crash charges nothing")
}

// TestMariaDBOutageUnderLoadIsSurvived proves contract 2 and 5.15: everything resumes without help, and nothing is lost
// or doubled.
func TestMariaDBOutageUnderLoadIsSurvived(t *testing.T) {
	t.Parallel()
	server := disturbedMariaDB(t)
	r := newRigOnMySQL(t, server)
	t.Cleanup(func() { require.NoError(t, server.Start()) })
	t.Cleanup(func() { require.NoError(t, server.Thaw()) })
	r.survives([]outage{
		{server.Stop, server.Start, 3 * time.Second},
		{server.Kill, server.Start, time.Second},
		{server.Freeze, server.Thaw, 6 * time.Second},
	})
}

// outage is what a server suffers under load.
type outage struct {
	begin, end func() error
	lasts      time.Duration
}

// survives disturbs the server while messages are accepted and handled, and judges what has become of them.
func (r *rig) survives(outages []outage) {
	t := r.t
	t.Helper()
	first, second := r.worker(), r.worker()
	more := func(n int) func() bool {
		return func() bool {
			var done int
			err := r.db.QueryRowContext(t.Context(), `SELECT count(*) FROM effects`).Scan(&done)
			return err == nil && done > n
		}
	}
	r.underDirectLoad(r.newInbox(r.settings.DSN), func() {
		require.Eventually(t, more(50), patience, 50*time.Millisecond, "work is under way")
		for _, outage := range outages {
			require.NoError(t, outage.begin())
			pause(t.Context(), outage.lasts)
			require.NoError(t, outage.end())
			done := r.number(`SELECT count(*) FROM effects`)
			require.Eventually(t, more(done+50), patience, 50*time.Millisecond, "work goes on")
		}
	})
	r.awaitSettled()
	r.verdict()
	require.True(t, first.Running() && second.Running(), "no worker gave up")
	require.NoError(t, first.Terminate())
	require.NoError(t, second.Terminate())
	require.NoError(t, first.Wait(patience))
	require.NoError(t, second.Wait(patience))
}
