package ops_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

const reason = "the mail server had dropped them"

// handled returns a reference to a handler's status of a message, at any version.
func handled(key, id string) ops.HandlerRef {
	return ops.HandlerRef{Message: ops.MessageRef{ID: id}, HandlerKey: key}
}

// TestRerunRunsOneEndedHandlerAgain proves contract 11.1.
func TestRerunRunsOneEndedHandlerAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no such order", "discarded")
		r.accept("completed", "discarded")
		r.process()
		require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", "discarded"), ""))
		r.fail("mail", "discarded", nil)
		before := len(r.handled())
		r.clock.Advance(time.Minute)
		for _, id := range []string{"completed", "discarded"} {
			page, err := r.ops.List(t.Context(), ops.Filter{MessageID: id, HandlerKeys: []string{"mail"}}, "", 1)
			require.NoError(t, err)
			require.NoError(t, r.ops.Rerun(t.Context(), ada, page.Items[0].Handler(), reason))
			s := r.status("mail", id)
			require.Nil(t, s.CompletedAt)
			require.Zero(t, s.ErrorCount)
			require.True(t, r.clock.Now().Equal(*s.NextAttemptAt))
			require.ErrorIs(t, r.ops.Rerun(t.Context(), ada, page.Items[0].Handler(), reason), ops.ErrStale)
		}
		require.Equal(t, "poison: no such order", *r.status("mail", "discarded").LastError, "it stays readable")
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "completed"})
		require.NoError(t, err)
		i := slices.IndexFunc(m.Statuses, func(s ops.StatusDetail) bool { return s.HandlerKey == "mail" })
		require.True(t, m.Statuses[i].Attempts[0].Retried)
		require.Equal(t, ops.StatePending, m.Statuses[i].State)
		require.False(t, m.Statuses[i].Failing)

		r.process()
		require.Equal(t, []string{"mail/completed", "mail/discarded"}, sorted(r.handled()[before:]), "no other handler")
		require.Equal(t, models.OutcomeProcessed, r.status("mail", "discarded").Outcome)
		audit, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: "rerun"}, "", 10)
		require.NoError(t, err)
		require.Len(t, audit.Items, 2)
		require.Equal(t, "handler mail of message discarded", audit.Items[0].Target)
		require.Contains(t, audit.Items[0].Detail, reason)
		require.Contains(t, audit.Items[0].Detail, `"state":"discarded"`)
		require.Regexp(t, "^was discarded, reason: "+reason+", completed at .*, status ID ", audit.Items[0].Summary())
	})
}

func TestOnlyEndedStatusesRunAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.poison("mail", "no", "poisoned")
		r.fail("mail", "failing", errors.New("boom"))
		r.accept("poisoned", "failing", "done", "superseded")
		r.process()
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET outcome = 'superseded' WHERE message_id = 'superseded'`)
		r.accept("pending", "processing")
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'processing'`)
		before := r.rows()
		for id, state := range map[string]string{"poisoned": "poisoned", "failing": "pending", "pending": "pending",
			"processing": "processing", "superseded": "superseded"} {
			err := r.ops.Rerun(ctx, ada, handled("mail", id), reason)
			require.ErrorIs(t, err, ops.ErrNotCompleted, id)
			require.ErrorContains(t, err, "but "+state)
		}
		done := handled("mail", "done")
		done.Version = int64(r.status("mail", "done").Version) + 1
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, done, reason), ops.ErrStale)
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, handled("mail", "unknown"), reason), ops.ErrNotFound)
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, handled("alone", "done"), reason), ops.ErrNotFound, "of another type")
		for _, bad := range []string{"", " \n", strings.Repeat("ä", 501), "a\x00b"} {
			require.ErrorIs(t, r.ops.Rerun(ctx, ada, handled("mail", "done"), bad), ops.ErrBadInput, "%q", bad)
		}
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, handled("", "done"), reason), ops.ErrBadInput)
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, handled("mail", ""), reason), ops.ErrBadInput)
		done.Version = -1
		require.ErrorIs(t, r.ops.Rerun(ctx, ada, done, reason), ops.ErrBadInput)
		require.Equal(t, before, r.rows(), "nothing was changed")
		require.Empty(t, r.audit())
	})
}

func TestOneOfConcurrentRerunsWins(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		r.process()
		ref := handled("mail", "1")
		ref.Version = int64(r.status("mail", "1").Version)
		inboxtest.OneWins(t, 8, ops.ErrStale, func(int) error { return r.ops.Rerun(t.Context(), ada, ref, reason) })
		require.Len(t, r.audit(), 1)
	})
}

// TestRerunIsRefusedIfNoProgramRunsTheHandler has an operator with the tables alone.
func TestRerunIsRefusedIfNoProgramRunsTheHandler(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		r.process()
		o, err := ops.New(r.d.DB, patient, func(o *ops.Options) { o.Clock = r.clock })
		require.NoError(t, err)
		require.NoError(t, o.Rerun(t.Context(), ada, handled("ship", "1"), reason), "a ProcessPending runs it")
		inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_workers`)
		before := r.rows()
		err = o.Rerun(t.Context(), ada, handled("mail", "1"), reason)
		require.ErrorIs(t, err, ops.ErrNotFound)
		require.ErrorContains(t, err, "no living worker lists it")
		require.Equal(t, before, r.rows())
		require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"mail"}}, r.clock.Now()))
		require.NoError(t, o.Rerun(t.Context(), ada, handled("mail", "1"), reason))
	})
}

func TestRerunOfAnInlineMessageSaysThatNothingIsStored(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Channel("c", inbox.Inline(), inbox.Kafka(kafkaconsumer.Config{
			Brokers: []string{"127.0.0.1:1"}, GroupID: "g", Topics: []string{"orders"},
		}), inbox.On("t", inboxtest.Do("mail", func(context.Context, inboxtest.Bytes) error { return nil }))))
		o, err := ib.Ops(patient)
		require.NoError(t, err)
		require.NoError(t, d.DB.Create(&models.Marker{MessageID: "1", HandlerKey: "mail", Namespace: "c",
			ProcessedAt: inboxtest.Noon, ExpiresAt: inboxtest.Noon.Add(time.Hour)}).Error)
		err = o.Rerun(t.Context(), ada, handled("mail", "1"), reason)
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.ErrorContains(t, err, "Inline or Direct and stores no statuses")

		o, err = ops.New(d.DB, patient)
		require.NoError(t, err)
		require.NoError(t, inboxtest.Store(t, d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"mail"}}, time.Now()))
		err = o.Rerun(t.Context(), ada, handled("mail", "1"), reason)
		require.ErrorIs(t, err, ops.ErrNotFound)
		require.ErrorContains(t, err, "handled inline")
	})
}

// TestRerunRowIsNextInItsLane proves contract 5.12: it was accepted before those that have not ended, which wait for it
// and are woken after it.
func TestRerunRowIsNextInItsLane(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		accept := func(ids ...string) {
			for _, id := range ids {
				m := inboxtest.Message(id)
				m.OrderingKey = []byte("lane")
				_, err := r.ib.Accept(t.Context(), m)
				require.NoError(t, err)
			}
		}
		accept("1")
		r.process()
		accept("2", "3")
		// As after a claim that found more rows after the head than it wanted.
		inboxtest.Exec(t, d.DB,
			`UPDATE inbox_handler_statuses SET is_waiting = true, version = version + 1 WHERE handler_key = 'mail' AND message_id = '3'`)
		r.poison("mail", "no", "1")
		require.NoError(t, r.ops.Rerun(t.Context(), ada, handled("mail", "1"), reason))
		for range 3 {
			r.process()
		}
		of := func() []string {
			return slices.DeleteFunc(r.handled(), func(at string) bool { return !strings.HasPrefix(at, "mail") })
		}
		require.Equal(t, []string{"mail/1"}, of(), "the lane is parked at it")
		r.fail("mail", "1", nil)
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "1")))
		for range 3 {
			r.process()
		}
		require.Equal(t, []string{"mail/1", "mail/1", "mail/2", "mail/3"}, of())
	})
}

func TestRerunOfAPausedHandlerWaitsForItsResume(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		r.process()
		require.NoError(t, r.ops.Pause(t.Context(), ada, "mail"))
		require.NoError(t, r.ops.Rerun(t.Context(), ada, handled("mail", "1"), reason))
		r.process()
		require.Nil(t, r.status("mail", "1").CompletedAt)
		require.NoError(t, r.ops.Resume(t.Context(), ada, "mail"))
		r.process()
		require.NotNil(t, r.status("mail", "1").CompletedAt)
	})
}

// TestRerunKeepsItsMessageFromCleanup proves contract 6.1: the retention begins anew when the status ends again.
func TestRerunKeepsItsMessageFromCleanup(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		r.process()
		r.clock.Advance(2 * time.Hour)
		require.NoError(t, r.ops.Rerun(t.Context(), ada, handled("mail", "1"), reason))
		deleted, err := r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.EqualValues(t, []int64{0, 1}, []int64{deleted.Messages, deleted.Statuses}, "the other handler's status")
		r.process()
		deleted, err = r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.Zero(t, deleted.Messages)
		r.clock.Advance(2 * time.Hour)
		deleted, err = r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted.Messages)
		require.ErrorIs(t, r.ops.Rerun(t.Context(), ada, handled("mail", "1"), reason), ops.ErrNotFound)
	})
}

// TestRerunOfARenamedHandlerRunsTheRowThatCounts proves contract 4.2.
func TestRerunOfARenamedHandlerRunsTheRowThatCounts(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var ran []string
		run := func(_ context.Context, m inboxtest.Bytes) error { ran = append(ran, m.HandlerKey); return nil }
		old := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("before", run)))
		inboxtest.Accept(t, old, "1")
		inboxtest.Process(t, old)
		renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", run, handler.LegacyKeys("before"))))
		inboxtest.Process(t, renamed)
		o, err := renamed.Ops(patient)
		require.NoError(t, err)
		require.NoError(t, o.Rerun(t.Context(), ada, handled("before", "1"), reason))
		inboxtest.Process(t, renamed)
		require.Equal(t, []string{"before", "before"}, ran)

		// A row that a program from before the rename has left, and an operator discarded.
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, sequence, created_at, completed_at, outcome)
			SELECT '00000000-0000-7000-8000-000000000001', number, id, 'now', 1000, received_at, received_at, 'discarded' FROM inbox_messages`)
		err = o.Rerun(t.Context(), ada, handled("now", "1"), reason)
		require.ErrorIs(t, err, ops.ErrNotCompleted)
		require.ErrorContains(t, err, `its status under the key "before" counts`)
	})
}
