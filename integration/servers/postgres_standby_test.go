package servers

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestStandbyHasExactlyTheAcknowledgedCommits(t *testing.T) {
	primary := startPostgres(t, PostgresOptions{})
	execute(t, primary, "CREATE TABLE written (step text)")
	standby, err := primary.StartStandby()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })

	execute(t, primary, "INSERT INTO written VALUES ('answered')")
	require.NoError(t, standby.Freeze())
	session, err := pgx.Connect(t.Context(), primary.DSN())
	require.NoError(t, err)
	answer := make(chan error, 1)
	go func() {
		_, err := session.Exec(t.Context(), "INSERT INTO written VALUES ('waiting')")
		answer <- err
	}()
	require.Eventually(t, func() bool {
		return query(t, primary, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	}, 30*time.Second, 10*time.Millisecond)
	require.Empty(t, answer)

	require.NoError(t, primary.Kill())
	require.Error(t, <-answer)
	require.NoError(t, standby.Kill())
	require.NoError(t, standby.Start())
	require.NoError(t, standby.Promote())
	require.Equal(t, "answered", query(t, standby, "SELECT string_agg(step, ',') FROM written"))
	execute(t, standby, "INSERT INTO written VALUES ('promoted')")
}
