package servers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startPatroni starts a cluster for one test.
func startPatroni(t *testing.T, options PatroniOptions) *Patroni {
	t.Helper()
	cluster, err := StartPatroni(options)
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	return cluster
}

// write inserts a row through a DSN, repeating that until it is acknowledged.
func write(t *testing.T, dsn string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, poll(ctx, func(ctx context.Context) error {
		return runStatements(ctx, dsn, "INSERT INTO written VALUES ('row')")
	}))
}

func TestPatroniReplacesALeaderThatIsSwitchedOverOrCrashed(t *testing.T) {
	cluster := startPatroni(t, PatroniOptions{Members: 2})
	first, err := cluster.Leader()
	require.NoError(t, err)
	require.NoError(t, runStatements(t.Context(), first.DSN(), "CREATE TABLE written (step text)"))
	proxy, err := cluster.StartHAProxy()
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	write(t, cluster.DSN())

	second, err := cluster.SwitchOver()
	require.NoError(t, err)
	require.NotSame(t, first, second)
	require.NoError(t, cluster.AwaitReplicas())
	write(t, cluster.DSN())

	require.NoError(t, cluster.AwaitCandidate())
	require.NoError(t, second.KillPostgres())
	leader, err := cluster.AwaitLeader(second)
	require.NoError(t, err)
	require.Same(t, first, leader)
	require.NoError(t, cluster.AwaitReplicas(), "Patroni starts the crashed one again")
	write(t, proxy.DSN())
	require.NoError(t, runStatements(t.Context(), leader.DSN(), "SELECT 1 / (count(*) >= 3)::int FROM written"))
}

func TestKilledMemberIsGoneAndComesBack(t *testing.T) {
	cluster := startPatroni(t, PatroniOptions{Members: 2, Asynchronous: true})
	leader, err := cluster.Leader()
	require.NoError(t, err)
	for _, m := range cluster.Members() {
		if m == leader {
			continue
		}
		require.NoError(t, m.Freeze())
		require.NoError(t, m.Kill())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.Error(t, PingPostgres(ctx, m.DSN()))
		cancel()
		require.NoError(t, m.Start())
	}
	require.NoError(t, cluster.AwaitReplicas())
}
