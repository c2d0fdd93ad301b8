package endtoend

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// needVitess leaves a test out where `make vitess` does not run it.
func needVitess(t *testing.T) {
	t.Helper()
	if os.Getenv(servers.VitessEnv) == "" {
		t.Skip("LEFT OUT: Vitess (make vitess runs the tests on it)")
	}
}

// newRigOnVitess makes a rig on a Vitess of its own. The test's own statements go to the MySQL behind it, which takes
// triggers and returns any number of rows.
func newRigOnVitess(t *testing.T) (*rig, *servers.Vitess) {
	t.Helper()
	needVitess(t)
	v, err := servers.StartVitess()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	data, err := testenv.OnMySQLDatabase(v.MySQL.DSN(), servers.BehindVitess("test"))
	require.NoError(t, err)
	return newRigBehind(t, v.DSN(), data), v
}

// TestVitessClaimsOfKilledWorkerResumeElsewhere proves contract 2 ("crash") and 5.9 there.
func TestVitessClaimsOfKilledWorkerResumeElsewhere(t *testing.T) {
	t.Parallel()
	r, _ := newRigOnVitess(t)
	r.claimsOfKilledWorkerResume()
}

// TestVitessOutageUnderLoadIsSurvived proves contract 2 and 5.15 there, for outages of its tablets and of the MySQL
// behind them.
func TestVitessOutageUnderLoadIsSurvived(t *testing.T) {
	t.Parallel()
	r, v := newRigOnVitess(t)
	t.Cleanup(func() { require.NoError(t, v.Thaw()) })
	t.Cleanup(func() { require.NoError(t, v.MySQL.Thaw()) })
	r.survives([]outage{
		{v.Stop, v.Start, 3 * time.Second},
		{v.Kill, v.Start, time.Second},
		{v.Freeze, v.Thaw, 6 * time.Second},
		{v.MySQL.Kill, v.MySQL.Start, time.Second},
		{v.MySQL.Freeze, v.MySQL.Thaw, 6 * time.Second},
	})
}

// TestVitessFailoverUnderLoadLosesAndDoublesNothing proves contract 2 and 5.12 for a planned and an emergency change of
// the primary of a cluster whose commits wait for a replica. What was acknowledged is handled once and in the order of
// its lanes.
func TestVitessFailoverUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	needVitess(t)
	cluster, err := servers.StartVitessCluster()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	primary, second, third := cluster.Tablets[0], cluster.Tablets[1], cluster.Tablets[2]
	f := &replicated{}
	f.judge, err = workload.StartCable(primary.Data())
	require.NoError(t, err)
	t.Cleanup(f.judge.Close)
	kafka := kafkaServer(t)
	f.stream = newStreamOn(newRigBehind(t, cluster.DSN(), f.judge.DSN()), kafka.Admin, kafka.Brokers())
	f.settings.Generation = workload.Original

	workers := []*workload.Worker{f.worker(), f.worker()}
	f.underLoad(func() {
		for _, worker := range workers {
			f.consumes(worker)
		}
		acknowledged := f.stepped()
		require.NoError(t, cluster.PlannedReparent(second))
		f.hasAll(second.Data(), acknowledged)
		f.worksOn()
		f.commitsOn()

		// Neither replica answers, so that the primary has commits that were not acknowledged.
		require.NoError(t, primary.MySQL.Freeze())
		f.fallSilent(third.MySQL.Freeze)
		acknowledged = f.stepped()
		require.NoError(t, second.Kill())
		require.NoError(t, primary.MySQL.Thaw())
		require.NoError(t, third.MySQL.Thaw())
		require.NoError(t, cluster.EmergencyReparent(third))
		f.hasAll(third.Data(), acknowledged)
		f.worksOn()
		f.commitsOn()
	})
	f.judgeAll(workers...)
}
