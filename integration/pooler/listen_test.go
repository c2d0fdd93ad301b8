package pooler

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestListenThroughTransactionPoolerWarnsAndPolls proves contract 4.7: LISTEN succeeds
// through the pooler, but no notification arrives.
func TestListenThroughTransactionPoolerWarnsAndPolls(t *testing.T) {
	t.Parallel()
	_, through := pooled(t, 3, nil)
	dsn := through + "&default_query_exec_mode=exec"
	observe, logs := inboxtest.Observe()
	worker, other, got := pair(t, testenv.OpenPostgres(t, dsn), testenv.OpenPostgres(t, dsn), observe,
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 200 * time.Millisecond
			o.Processor.StatementTimeout = 3 * time.Second
		}))
	said := func() int {
		return logs.FilterMessage("inbox: notifications cannot arrive, what other processes accept is found by polling").Len()
	}
	inboxtest.Eventually(t, func() bool { return said() == 1 }, "the log tells that no notification arrives")
	require.NoError(t, worker.Health().Processor.Conditions["listening"])
	inboxtest.Accept(t, other, "1")
	require.Equal(t, "1", inboxtest.Receive(t, got, "what the poll finds"))
	require.Equal(t, 1, said())
}

// TestListenThroughTransactionPoolerLeavesNothing proves contract 3.7: a session that
// listens would keep doing so for the client that gets it next.
func TestListenThroughTransactionPoolerLeavesNothing(t *testing.T) {
	t.Parallel()
	const size = 3
	_, through := pooled(t, size, nil)
	dsn := through + "&default_query_exec_mode=exec"
	worker, other, got := pair(t, testenv.OpenPostgres(t, dsn), testenv.OpenPostgres(t, dsn),
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = 200 * time.Millisecond
			o.Processor.StatementTimeout = 3 * time.Second
		}))
	for id := range 20 { // meanwhile it tries again and again
		inboxtest.Accept(t, other, strconv.Itoa(id))
		inboxtest.Receive(t, got, "what the poll finds")
		var channels []string
		require.NoError(t, other.DB().Raw("SELECT pg_listening_channels()").Scan(&channels).Error)
		require.Empty(t, channels, "what a session of the application listens to")
	}
	require.NoError(t, worker.Stop(t.Context()))
	requireNobodyListens(t, dsn, size)
}

func TestListenThroughSessionPoolerLeavesNothing(t *testing.T) {
	t.Parallel()
	const size = 20
	_, through := pooled(t, size, map[string]string{"pool_mode": "session", "server_reset_query": ""})
	db := testenv.OpenPostgres(t, through)
	worker, other, got := pair(t, db, db, inbox.Configure(func(o *inbox.Options) {
		o.Processor.PollingInterval = time.Hour
	}))
	for _, id := range []string{"at the start", "heard"} {
		inboxtest.Accept(t, other, id)
		require.Equal(t, id, inboxtest.Receive(t, got, "what is announced"))
	}
	require.NoError(t, worker.Stop(t.Context()))
	pool, err := db.DB()
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	requireNobodyListens(t, through+"&default_query_exec_mode=exec", size)
}

// requireNobodyListens checks all sessions of the pooler at once.
func requireNobodyListens(t *testing.T, dsn string, size int) {
	t.Helper()
	db := testenv.OpenPostgres(t, dsn)
	sessions := map[int]bool{}
	for range size {
		tx := db.Begin()
		require.NoError(t, tx.Error)
		defer tx.Rollback()
		var session int
		require.NoError(t, tx.Raw("SELECT pg_backend_pid()").Scan(&session).Error)
		sessions[session] = true
		var channels []string
		require.NoError(t, tx.Raw("SELECT pg_listening_channels()").Scan(&channels).Error)
		require.Empty(t, channels, "what a session of the application listens to")
	}
	require.Len(t, sessions, size)
}

// TestListenWorksThroughSessionPooler checks that a pooler in session mode forwards
// notifications.
func TestListenWorksThroughSessionPooler(t *testing.T) {
	t.Parallel()
	_, through := pooled(t, 40, map[string]string{"pool_mode": "session"})
	worker, other, got := pair(t, testenv.OpenPostgres(t, through), testenv.OpenPostgres(t, through),
		inbox.Configure(func(o *inbox.Options) { o.Processor.PollingInterval = time.Hour }))
	for _, id := range []string{"at the start", "heard", "heard again"} {
		inboxtest.Accept(t, other, id)
		require.Equal(t, id, inboxtest.Receive(t, got, "what is announced"))
	}
	require.NoError(t, worker.Health().Processor.Conditions["listening"])
}

// pair makes a worker that listens, and an inbox of another process that accepts.
func pair(
	t *testing.T, db, elsewhere *gorm.DB, options ...inbox.Option,
) (worker, other *inbox.Inbox, got <-chan string) {
	t.Helper()
	arrived := make(chan string, 10)
	handler := inboxtest.Do("a", func(_ context.Context, m inboxtest.Bytes) error { arrived <- m.ID; return nil })
	worker = inboxtest.New(t, db, append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Listen = true
	}), inboxtest.Handlers(handler)},
		options...)...)
	other = inboxtest.New(t, elsewhere, inbox.Configure(func(o *inbox.Options) {
		o.Processor.Listen = true
	}), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
	inboxtest.Start(t, worker)
	return worker, other, arrived
}
