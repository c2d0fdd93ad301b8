package pooler

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// TestServerConnectionLostBehindPoolerChargesNothing proves contract 5.7: PgBouncer ends its client's connection with
// FATAL and the SQLSTATE of a protocol violation when it has lost its own connection to the server.
func TestServerConnectionLostBehindPoolerChargesNothing(t *testing.T) {
	t.Parallel()
	direct := testenv.PostgresDSN(t)
	proxy := pgproxy.New(t, direct)
	through := poolerOf(t, proxy.DSN(), 5, map[string]string{"server_login_retry": "1"})
	var cut atomic.Bool
	declared := inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
		if err := tx.Exec("SELECT 1").Error; err != nil {
			return err
		}
		if !cut.Swap(true) {
			proxy.Cut()
		}
		return tx.Exec("SELECT 1").Error
	}))
	observer := inboxtest.New(t, testenv.OpenPostgres(t, direct), declared) // has its own connections
	inboxtest.Start(t, inboxtest.New(t, testenv.OpenPostgres(t, through+"&default_query_exec_mode=exec"),
		inboxtest.Brisk(), declared))
	inboxtest.Accept(t, observer, "m")
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, observer) }, "it runs again and is completed")
	require.True(t, cut.Load())
	require.Zero(t, inboxtest.Status(t, observer, "m", "h").ErrorCount, "the database has failed, not the message")
}
