package pgxtx

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestOnlyTheGivenTransactionIsEnded proves that a session is safe which has got the process ID of a
// lost one, or is in its next transaction.
func TestOnlyTheGivenTransactionIsEnded(t *testing.T) {
	c, err := pgx.ParseConfig(testenv.PostgresDSN(t))
	require.NoError(t, err)
	pool := stdlib.OpenDB(*c)
	defer pool.Close()
	sent := time.Now()
	tx, err := pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	var pid uint32
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	its := session{pid: pid, sent: sent, begun: time.Now()}

	for name, other := range map[string]session{
		"another process":        {1 << 30, its.sent, its.begun},
		"an earlier transaction": {pid, its.sent.Add(-time.Minute), its.begun.Add(-time.Minute)},
	} {
		left, err := endSessions(pool, []session{other})
		require.NoError(t, err)
		require.Empty(t, left, name)
		_, err = tx.ExecContext(t.Context(), "SELECT 1")
		require.NoError(t, err, name)
	}
	left, err := endSessions(pool, []session{{pid: 1 << 30}, its})
	require.NoError(t, err)
	require.Equal(t, []session{its}, left)
	_, err = tx.ExecContext(t.Context(), "SELECT 1")
	require.Error(t, err)
	require.Eventually(t, func() bool { // its server process ends after it has told the client
		left, err = endSessions(pool, []session{its})
		return err == nil && len(left) == 0
	}, 10*time.Second, 10*time.Millisecond)
}
