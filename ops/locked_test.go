package ops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/ops"
)

// Contract 11.5: health does not depend on the table that is locked. SQLite's readers wait for nobody in WAL mode.
func TestOverviewOfALockedTableHasTheHealthAndUnknownCounts(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.poison("mail", "boom", "a")
		r.accept("a")
		r.process()
		r.reject(1, "bad")
		require.NoError(t, inboxtest.Store(t, d.DB).Heartbeat(t.Context(), store.Worker{
			ID: "0197a1c2-0000-7000-8000-000000000001", HandlerKeys: []string{"mail"},
			Health: `[{"code":"database","state":"degraded","detail":"the backlog cannot be read"}]`}, time.Now()))
		o, err := r.ib.Ops(func(o *ops.Options) { o.StatementTimeout = 500 * time.Millisecond })
		require.NoError(t, err)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			inboxtest.Exec(t, tx, "LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE")
			seen, err := o.Overview(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, seen.WorkersAlive)
			require.Equal(t, "the backlog cannot be read", seen.Reasons[0].Detail)
			require.Equal(t, ops.Count{N: 1}, seen.Rejected, "another table")
			require.Len(t, seen.Handlers, 1)
			unknown := ops.Count{Unknown: true}
			mail := seen.Handlers[0]
			require.Equal(t, []ops.Count{unknown, unknown, unknown, unknown, unknown},
				[]ops.Count{mail.Pending, mail.Due, mail.Waiting, mail.Processing, mail.Poisoned})
			require.Contains(t, seen.Incomplete, "the open statuses")
			require.Contains(t, seen.Incomplete, "pg_blocking_pids")
			return nil
		}))
		seen, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		require.Empty(t, seen.Incomplete)
		require.Equal(t, ops.Count{N: 1}, seen.Handlers[0].Poisoned)
	})
}
