package processor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestLateClaimOfAReleasedWorkerIsRecovered proves contract 5.9: what a dead worker
// has left open keeps no one from being recovered, and it is recovered once it is committed.
func TestLateClaimOfAReleasedWorkerIsRecovered(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, hasty(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 10 * inboxtest.Patience
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		const another = "0192f000-0000-7000-8000-000000000002"
		inboxtest.Accept(t, ib, "late", "other")
		for _, id := range []string{vanishing, another} {
			require.NoError(t, heartbeat(t, d, system, worker(id, "h")))
			silentFor(t, d, id, 3*inboxtest.Patience)
		}
		claimAs := "UPDATE inbox_handler_statuses SET worker_id = ?, processing_started_at = created_at, version = version + 1 WHERE message_id = ?"
		open := d.DB.Begin()
		defer open.Rollback()
		require.NoError(t, open.Exec(claimAs, vanishing, "late").Error)
		inboxtest.Exec(t, d.DB, claimAs, another, "other")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "other", "h").CompletedAt != nil
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
		require.NoError(t, open.Commit().Error)
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "late", "h").CompletedAt != nil
		}, "the late claim is recovered")
		require.Empty(t, ib.Health().Processor.Conditions)
	})
}

// TestDeadWorkersOpenAcceptIsEnded proves contract 5.9.
func TestDeadWorkersOpenAcceptIsEnded(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, hasty(), log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 10 * inboxtest.Patience
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, heartbeat(t, d, system, worker(vanishing, "h")))
		silentFor(t, d, vanishing, 3*inboxtest.Patience)
		// An accept whose machine lost power after its statement ran.
		tx := d.DB.Begin()
		defer tx.Rollback()
		require.NoError(t, tx.Exec("SELECT pg_try_advisory_xact_lock_shared(hashtextextended(?, 0))", vanishing).Error)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			for _, w := range workers(t, d) {
				if w.ID == vanishing {
					return w.ReleasedAt != nil
				}
			}
			return false
		}, "it is marked released")
		require.Error(t, tx.Commit().Error)
		// A session that is slow to end is ended by the next sweep once more.
		require.NotZero(t, logs.FilterMessageSnippet("ended transactions that dead workers left open").Len())
		require.Empty(t, ib.Health().Processor.Conditions)
	})
}
