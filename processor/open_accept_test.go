package processor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestDeadWorkersOpenAcceptIsEndedAndBlocksNoOne(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, hasty(), log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 10 * inboxtest.Patience
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		silentFor(t, d, vanishing, 3*inboxtest.Patience)
		// An accept whose machine lost power after its statement ran.
		tx := d.DB.Begin()
		defer tx.Rollback()
		require.NoError(t, tx.Exec("SELECT id FROM inbox_workers WHERE id = ? AND released_at IS NULL FOR KEY SHARE",
			vanishing).Error)
		// A worker that died a little later and had a claim.
		const another = "0192f000-0000-7000-8000-000000000002"
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, heartbeat(t, d, system, worker(another, "h")))
		claim(t, d, system, another, 1, "h")
		silentFor(t, d, another, 3*inboxtest.Patience)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "1", "h").CompletedAt != nil
		}, "the other one's claim is recovered")
		inboxtest.Eventually(t, func() bool {
			released := 0
			for _, w := range workers(t, d) {
				if (w.ID == vanishing || w.ID == another) && w.ReleasedAt != nil {
					released++
				}
			}
			return released == 2
		}, "both are marked released")
		require.Error(t, tx.Commit().Error)
		// A session that is slow to end is ended by the next sweep once more.
		require.NotZero(t, logs.FilterMessageSnippet("ended transactions that a dead worker left open").Len())
		require.Zero(t, logs.FilterMessageSnippet("recovery failing").Len())
		require.Empty(t, ib.Health().Processor.Conditions)
	})
}
