package ops_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestReleasedClaimRunsAgainBesideACallThatHangs proves contract 5.10, 11.1: what the old call returns later changes
// nothing. The same worker, and no other, runs both.
func TestReleasedClaimRunsAgainBesideACallThatHangs(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began, hang := make(chan string, 10), make(chan struct{})
		var calls atomic.Int32
		recording, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), recording, inboxtest.Handlers(inboxtest.Do("h",
			func(_ context.Context, m inboxtest.Bytes) error {
				began <- m.ID
				if calls.Add(1) == 1 {
					<-hang // it ignores its context
					return handler.Poison(context.Canceled)
				}
				return nil
			}, handler.Ordered())))
		o, err := ib.Ops(patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		for _, id := range []string{"1", "2"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("lane")
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		require.Equal(t, "1", inboxtest.Receive(t, began, "the call that hangs"))
		claimed := inboxtest.Status(t, ib, "1", "h")
		ref := ops.Ref{StatusID: claimed.ID, Version: int64(claimed.Version)}
		require.ErrorIs(t, o.ReleaseClaim(t.Context(), ada, ops.Ref{StatusID: ref.StatusID}), ops.ErrBadInput, "of which claim")
		require.ErrorIs(t, o.ReleaseClaim(t.Context(), ada, ops.Ref{StatusID: ref.StatusID, Version: ref.Version + 1}),
			ops.ErrStale)
		require.NoError(t, o.ReleaseClaim(t.Context(), ada, ref))
		require.Equal(t, "1", inboxtest.Receive(t, began, "the second call"))
		require.Equal(t, "2", inboxtest.Receive(t, began, "the next of the lane"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "both to complete")
		require.ErrorIs(t, o.ReleaseClaim(t.Context(), ada, ref), ops.ErrStale, "it has ended")
		done := inboxtest.Status(t, ib, "1", "h")
		close(hang)
		inboxtest.Eventually(t, func() bool {
			return logs.FilterMessageSnippet("stale").Len()+logs.FilterMessageSnippet("no effect").Len() > 0
		}, "the old call's result to be refused")
		require.Equal(t, done, inboxtest.Status(t, ib, "1", "h"))
		require.Equal(t, models.OutcomeProcessed, done.Outcome)
		require.EqualValues(t, 3, calls.Load())
	})
}

// TestReleasedTransactionalCallStoresNothing proves contract 2, 5.11: only the call that has the claim commits.
func TestReleasedTransactionalCallStoresNothing(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite's one writer waits for the old call
		inboxtest.Exec(t, d.DB, `CREATE TABLE letters (call bigint)`)
		began, hang := make(chan struct{}, 10), make(chan struct{})
		var calls atomic.Int32
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Tx("h",
			func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				call := calls.Add(1)
				if err := tx.Exec(`INSERT INTO letters VALUES (?)`, call).Error; err != nil {
					return err
				}
				began <- struct{}{}
				if call == 1 {
					<-hang
				}
				return nil
			})))
		o, err := ib.Ops(patient)
		require.NoError(t, err)
		end := inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, began, "the call that hangs")
		claimed := inboxtest.Status(t, ib, "1", "h")
		require.NoError(t, o.ReleaseClaim(t.Context(), ada, ops.Ref{StatusID: claimed.ID, Version: int64(claimed.Version)}))
		inboxtest.Receive(t, began, "the second call")
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it to complete")
		close(hang)
		end()
		var stored []int64
		require.NoError(t, d.DB.Raw(`SELECT call FROM letters`).Scan(&stored).Error)
		require.Equal(t, []int64{2}, stored)
	})
}

func TestOnlyAClaimIsReleased(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "poisoned")
		r.accept("poisoned", "done")
		r.process()
		r.accept("pending", "processing")
		before := r.rows()
		for _, id := range []string{"poisoned", "pending"} {
			require.ErrorIs(t, r.ops.ReleaseClaim(t.Context(), ada, r.ref("mail", id)), ops.ErrNotClaimed, id)
		}
		require.ErrorIs(t, r.ops.ReleaseClaim(t.Context(), ada, r.ref("mail", "done")), ops.ErrStale)
		require.ErrorIs(t, r.ops.ReleaseClaim(t.Context(), ada, ops.Ref{StatusID: uuid.NewString(), Version: 1}),
			ops.ErrStale)
		require.ErrorIs(t, r.ops.ReleaseClaim(t.Context(), "", r.ref("mail", "pending")), ops.ErrBadInput)
		require.Equal(t, before, r.rows())
		require.Empty(t, r.audit())

		worker := uuid.NewString()
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at, worker_id = ?
			WHERE message_id = 'processing'`, worker)
		ref := r.ref("mail", "processing")
		inboxtest.OneWins(t, 8, ops.ErrStale, func(int) error { return r.ops.ReleaseClaim(t.Context(), ada, ref) })
		require.Equal(t, []string{"ada release_claim status " + ref.StatusID}, r.audit())
		audit, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: "release_claim"}, "", 10)
		require.NoError(t, err)
		require.Equal(t, "handler key mail, message ID processing", audit.Items[0].Summary())
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "processing"})
		require.NoError(t, err)
		mail := m.Statuses[0]
		require.Equal(t, []any{"mail", ops.StatePending, 1}, []any{mail.HandlerKey, mail.State, mail.AbandonedCount})
		require.Equal(t, []string{worker, "an operator released its claim"},
			[]string{mail.Attempts[0].WorkerID, mail.Attempts[0].Error})
		r.process()
		require.Equal(t, models.OutcomeProcessed, r.status("mail", "processing").Outcome)
		require.Zero(t, r.status("mail", "processing").AbandonedCount, "an attempt has finished")
	})
}

// asked is a clock that signals each reading.
type asked struct {
	clock.Clock
	signal chan struct{}
}

func (a asked) Now() time.Time {
	select {
	case a.signal <- struct{}{}:
	default:
	}
	return a.Clock.Now()
}

// TestReleaseEndsNoTransactionThatLocksTheStatusForAMoment: it may store results of many other messages, or be another
// operator's.
func TestReleaseEndsNoTransactionThatLocksTheStatusForAMoment(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		tries := make(chan struct{}, 1)
		r := newRig(t, d, func(o *ops.Options) { o.Clock = asked{o.Clock, tries} })
		r.accept("1")
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at`)
		ref := r.ref("mail", "1")
		tx := d.DB.Begin()
		require.NoError(t, tx.Error)
		require.NoError(t, tx.Exec(`UPDATE inbox_handler_statuses SET last_error = 'x' WHERE id = ?`, ref.StatusID).Error)
		released := make(chan error, 1)
		for len(tries) > 0 {
			<-tries
		}
		go func() { released <- r.ops.ReleaseClaim(t.Context(), ada, ref) }()
		inboxtest.Receive(t, tries, "the first try")
		inboxtest.Receive(t, tries, "the second try")
		require.NoError(t, tx.Commit().Error)
		require.NoError(t, inboxtest.Receive(t, released, "the release"))
		require.Equal(t, []string{"ada release_claim status " + ref.StatusID}, r.audit(), "it has ended no session")
	})
}
