package servers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// write inserts a row through a DSN, repeating that until it is acknowledged.
func write(t *testing.T, dsn string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, poll(ctx, func(ctx context.Context) error {
		return RunStatements(ctx, dsn, "INSERT INTO written VALUES ('row')")
	}))
}

func TestPatroniReplacesALostLeader(t *testing.T) {
	cluster, err := StartPatroni(2)
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	first, err := cluster.Leader()
	require.NoError(t, err)
	require.NoError(t, RunStatements(t.Context(), first.DSN(), "CREATE TABLE written (step text)"))
	proxy, err := cluster.StartHAProxy()
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	write(t, cluster.DSN())

	require.NoError(t, cluster.SwitchOver())
	second, err := cluster.AwaitLeader(first)
	require.NoError(t, err)
	require.NoError(t, cluster.AwaitReplicas())
	write(t, proxy.DSN())

	require.NoError(t, cluster.AwaitCandidate())
	require.NoError(t, second.KillPostgres())
	leader, err := cluster.AwaitLeader(second)
	require.NoError(t, err)
	require.Same(t, first, leader)
	require.NoError(t, cluster.AwaitReplicas(), "Patroni starts the crashed one again")
	write(t, cluster.DSN())

	require.NoError(t, second.Freeze())
	require.NoError(t, second.Kill())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, PingPostgres(ctx, second.DSN()))
	require.ErrorContains(t, second.KillPostgres(), "not running")
	require.NoError(t, second.Start())
	require.NoError(t, cluster.AwaitReplicas())

	require.NoError(t, cluster.AwaitCandidate())
	require.NoError(t, first.Kill())
	require.NoError(t, cluster.ExpireLeader())
	_, err = cluster.AwaitLeader(first)
	require.NoError(t, err)
	write(t, proxy.DSN())
	require.NoError(t, RunStatements(t.Context(), second.DSN(), "SELECT 1 / (count(*) >= 4)::int FROM written"))
}
