package pooler

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Contract 4.7: LISTEN succeeds there, and nothing is ever heard.
func TestListenThroughAPoolerInTransactionModeSaysSoAndPolls(t *testing.T) {
	t.Parallel()
	_, through := pooled(t, servers.PgBouncerOptions{PoolSize: 3})
	dsn := through + "&default_query_exec_mode=exec"
	observe, logs := inboxtest.Observe()
	worker, other, got := pair(t, testenv.OpenPostgres(t, dsn), testenv.OpenPostgres(t, dsn), observe, inbox.PollingInterval(200*time.Millisecond), inbox.StatementTimeout(3*time.Second))
	inboxtest.Eventually(t, func() bool { return worker.Health().Processor.Troubles["listening"] != nil }, "health says that nothing is heard")
	require.ErrorContains(t, worker.Health().Degraded(), "pooler in transaction mode")
	told := logs.FilterMessage("inbox: other processes' wake-ups do not arrive, polling goes on")
	inboxtest.Accept(t, other, "1")
	require.Equal(t, "1", inboxtest.Receive(t, got, "what the poll finds"))
	require.Equal(t, 1, told.Len())
}

// A pooler in session mode lets notifications through.
func TestListenThroughAPoolerInSessionMode(t *testing.T) {
	t.Parallel()
	_, through := pooled(t, servers.PgBouncerOptions{Mode: "session", PoolSize: 40})
	worker, other, got := pair(t, testenv.OpenPostgres(t, through), testenv.OpenPostgres(t, through), inbox.PollingInterval(time.Hour))
	for _, id := range []string{"at the start", "heard", "heard again"} {
		inboxtest.Accept(t, other, id)
		require.Equal(t, id, inboxtest.Receive(t, got, "what is announced"))
	}
	require.NoError(t, worker.Health().Processor.Troubles["listening"])
}

// pair is a worker that listens and an inbox of another process that accepts.
func pair(t *testing.T, db, elsewhere *gorm.DB, options ...inbox.Option) (worker, other *inbox.Inbox, got <-chan string) {
	t.Helper()
	arrived := make(chan string, 10)
	handler := inboxtest.Do("a", func(_ context.Context, m inboxtest.Bytes) error { arrived <- m.ID; return nil })
	worker = inboxtest.New(t, db, append([]inbox.Option{inboxtest.Brisk(), inbox.Listen(), inboxtest.Handlers(handler)}, options...)...)
	other = inboxtest.New(t, elsewhere, inbox.Listen(), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
	inboxtest.Start(t, worker)
	return worker, other, arrived
}
