package ops_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestRetryMakesAPoisonedStatusDueNow proves contract 11.1.
func TestRetryMakesAPoisonedStatusDueNow(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no such order", "1")
		r.accept("1")
		r.process()
		require.NoError(t,
			r.d.DB.Exec(`UPDATE inbox_handler_statuses SET abandoned_count = 2, error_count = 4 WHERE is_poisoned`).Error)
		before := r.status("mail", "1")
		require.True(t, before.IsPoisoned)
		r.clock.Advance(time.Hour)
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "1")))

		after := r.status("mail", "1")
		require.False(t, after.IsPoisoned)
		require.Zero(t, after.ErrorCount)
		require.Zero(t, after.AbandonedCount)
		require.Equal(t, before.RequeuedCount+1, after.RequeuedCount)
		require.Equal(t, before.Version+1, after.Version)
		require.Equal(t, "poison: no such order", *after.LastError)
		require.True(t, r.clock.Now().Equal(*after.NextAttemptAt), "behind what has come since")
		require.Equal(t, []string{"ada retry status " + before.ID}, r.audit())
		page, err := r.ops.List(t.Context(), ops.Filter{States: []ops.State{ops.StatePending}, HandlerKeys: []string{"mail"}},
			"", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		require.False(t, page.Items[0].Failing, "it is as good as new")

		r.fail("mail", "1", nil)
		r.process()
		require.Equal(t, models.OutcomeProcessed, r.status("mail", "1").Outcome)
		require.Equal(t, []string{"ship/1", "mail/1"}, r.handled(), "the other handler ran once")
	})
}

// TestOperatorsClockDelaysNothing runs an operator's machine that is ahead of the database by a
// day.
func TestOperatorsClockDelaysNothing(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.poison("mail", "no", "1", "2")
		r.accept("1", "2")
		r.process()
		o, err := ops.New(d.DB, func(o *ops.Options) { o.Clock = clock.Offset(24 * time.Hour) })
		require.NoError(t, err)
		require.NoError(t, o.Retry(t.Context(), ada, r.ref("mail", "1")))
		require.NoError(t, o.Discard(t.Context(), ada, r.ref("mail", "2"), ""))
		require.WithinDuration(t, time.Now(), *r.status("mail", "1").NextAttemptAt, time.Hour)
		require.WithinDuration(t, time.Now(), *r.status("mail", "2").CompletedAt, time.Hour)
	})
}

// TestAgesAndWaitsFollowAnInjectedClock has a test's clock ahead of every database,
// on which nothing depends then.
func TestAgesAndWaitsFollowAnInjectedClock(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.clock.Advance(time.Since(r.clock.Now()) + 48*time.Hour)
		r.poison("mail", "no", "retried", "discarded")
		r.accept("retried", "discarded")
		r.process()
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "retried")))
		require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", "discarded"), ""))
		require.True(t, r.clock.Now().Equal(*r.status("mail", "retried").NextAttemptAt))
		require.True(t, r.clock.Now().Equal(*r.status("mail", "discarded").CompletedAt))

		r.clock.Advance(time.Minute)
		overview, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		for _, h := range overview.Handlers {
			if h.HandlerKey == "mail" {
				require.Equal(t, time.Minute, h.OldestDueAge)
			}
		}
		deleted, err := r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.Zero(t, deleted.Messages, "its retention has only begun")
	})
}

// TestDiscardedStatusStillDetectsDuplicates proves contract 11.1, 6.4.
func TestDiscardedStatusStillDetectsDuplicates(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no such order", "1")
		r.accept("1")
		r.process()
		require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", "1"), ""))
		after := r.status("mail", "1")
		require.Equal(t, models.OutcomeDiscarded, after.Outcome)
		require.False(t, after.IsPoisoned)
		require.True(t, r.clock.Now().Equal(*after.CompletedAt))
		require.Equal(t, []string{"mail/1"}, r.list(ops.Filter{States: []ops.State{ops.StateDiscarded}}, 10))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, r.ib, "1")[0].Outcome)
		r.process()
		require.Equal(t, []string{"ship/1"}, r.handled())

		r.clock.Advance(2 * time.Hour)
		deleted, err := r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted.Messages, "cleaned like a completed one")
	})
}

// TestOnlyIdleOpenStatusesAreChanged proves contract 11.1: which may be discarded and which retried.
func TestOnlyIdleOpenStatusesAreChanged(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.poison("mail", "no", "poisoned")
		r.fail("mail", "failing", errors.New("boom"))
		r.fail("mail", "waiting", errors.New("boom"))
		r.accept("poisoned", "failing", "waiting", "done")
		r.process()
		r.accept("pending", "processing")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true WHERE message_id = 'waiting'`)
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'processing'`)
		before := r.rows()
		for name, act := range map[string]func(ref ops.Ref) error{
			"retry":   func(ref ops.Ref) error { return r.ops.Retry(ctx, ada, ref) },
			"discard": func(ref ops.Ref) error { return r.ops.Discard(ctx, ada, ref, "") },
		} {
			for _, id := range []string{"failing", "waiting", "done", "pending", "processing"} {
				want := ops.ErrNotPoisoned
				switch {
				case id == "processing":
					want = ops.ErrProcessing
				case id == "done":
					want = ops.ErrStale
				case name == "discard" || id == "failing":
					continue
				}
				require.ErrorIs(t, act(r.ref("mail", id)), want, "%s %s", name, id)
				if id == "done" {
					want = ops.ErrNotFound
				}
				require.ErrorIs(t, act(ops.Ref{StatusID: r.ref("mail", id).StatusID}), want, "%s %s", name, id)
			}
			ref := r.ref("mail", "poisoned")
			require.ErrorIs(t, act(ops.Ref{StatusID: uuid.NewString()}), ops.ErrNotFound)
			require.ErrorIs(t, act(ops.Ref{StatusID: ref.StatusID, Version: ref.Version - 1}), ops.ErrStale)
			require.ErrorIs(t, act(ops.Ref{StatusID: ref.StatusID, Version: ref.Version + 1}), ops.ErrStale)
			require.ErrorIs(t, act(ops.Ref{StatusID: ref.StatusID, Version: -1}), ops.ErrBadInput)
			require.ErrorIs(t, act(ops.Ref{StatusID: "no UUID"}), ops.ErrBadInput)
			require.ErrorIs(t, act(ops.Ref{}), ops.ErrBadInput)
		}
		require.Equal(t, before, r.rows(), "nothing was changed")
		require.Empty(t, r.audit(), "nor was anything noted")
		require.NoError(t, r.ops.Discard(ctx, ada, ops.Ref{StatusID: strings.ToUpper(r.ref("mail", "poisoned").StatusID)}, ""),
			"of any version")
	})
}

// TestRetryRunsAFailingStatusNow proves contract 11.1, 5.5.
func TestRetryRunsAFailingStatusNow(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.fail("mail", "1", errors.New("boom"))
		r.accept("1")
		r.process()
		before := r.status("mail", "1")
		require.True(t, before.NextAttemptAt.After(r.clock.Now()))
		ref := r.ref("mail", "1")
		require.NoError(t, r.ops.Retry(t.Context(), ada, ref))
		after := r.status("mail", "1")
		require.True(t, r.clock.Now().Equal(*after.NextAttemptAt))
		require.Zero(t, after.ErrorCount)
		require.Equal(t, 1, after.RequeuedCount)
		require.Equal(t, before.Version+1, after.Version)
		require.ErrorIs(t, r.ops.Retry(t.Context(), ada, ref), ops.ErrStale)
		require.ErrorIs(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "1")), ops.ErrNotPoisoned, "it has not failed again")
		r.fail("mail", "1", nil)
		r.process()
		require.Equal(t, models.OutcomeProcessed, r.status("mail", "1").Outcome)
	})
}

func TestRetryRunsAFailingLaneHeadFirst(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.fail("mail", "1", errors.New("boom"))
		r.clock.Advance(time.Second)
		for _, id := range []string{"1", "2"} {
			_, err := r.ib.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "t", ID: id, OrderingKey: []byte("k")})
			require.NoError(t, err)
		}
		r.process()
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "1")))
		require.ErrorIs(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "2")), ops.ErrNotPoisoned)
		r.fail("mail", "1", nil)
		r.process()
		require.Equal(t, []string{"mail/1", "mail/2"}, slices.DeleteFunc(r.handled(), func(at string) bool {
			return strings.HasPrefix(at, "ship/")
		}))
	})
}

func TestOneOfTwoConcurrentOperatorsWins(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1")
		r.accept("1")
		r.process()
		ref := r.ref("mail", "1")
		inboxtest.OneWins(t, 8, ops.ErrStale, func(i int) error {
			if i%2 == 0 {
				return r.ops.Retry(t.Context(), ada, ref)
			}
			return r.ops.Discard(t.Context(), "bob", ref, "")
		})
		require.Len(t, r.audit(), 1)
		require.EqualValues(t, ref.Version+1, r.status("mail", "1").Version)
	})
}

func TestActorIsRequired(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1")
		r.accept("1")
		r.process()
		r.acceptLater(r.clock.Now().Add(time.Hour), "later")
		before := r.rows()
		for _, actor := range []ops.Actor{"", "  ", ops.Actor(strings.Repeat("ä", 201)), "a\x00b", "\xff"} {
			for name, act := range actions(t, r, actor, r.ref("mail", "1")) {
				require.ErrorIs(t, act(), ops.ErrBadInput, "%s by %q", name, actor)
			}
		}
		require.Equal(t, before, r.rows())
		require.NoError(t, r.ops.Retry(t.Context(), ops.Actor(strings.Repeat("ä", 200)), r.ref("mail", "1")))
	})
}

// actions returns all actions, on message "1", whose status of "mail" is poisoned.
func actions(t *testing.T, r *rig, actor ops.Actor, ref ops.Ref) map[string]func() error {
	t.Helper()
	ctx := t.Context()
	o, err := r.ib.Ops(allowReplay)
	require.NoError(t, err)
	const rejected = "00000000-0000-7000-8000-000000000007"
	poisoned, later := ops.Filter{HandlerKeys: []string{"mail"}}, r.ref("mail", "later")
	halt := ops.PartitionRef{Channel: "c", Topic: "orders", Partition: 1, Offset: 7}
	return map[string]func() error{
		"view":        func() error { _, err := o.Message(ctx, actor, ops.MessageRef{ID: "1"}); return err },
		"retry":       func() error { return o.Retry(ctx, actor, ref) },
		"discard":     func() error { return o.Discard(ctx, actor, ref, "") },
		"retry all":   func() error { _, err := o.RetryMatching(ctx, actor, poisoned, ops.Bulk{}); return err },
		"discard all": func() error { _, err := o.DiscardMatching(ctx, actor, poisoned, ops.Bulk{}); return err },
		"reschedule":  func() error { return o.Reschedule(ctx, actor, later, r.clock.Now().Add(time.Hour)) },
		"reschedule all": func() error {
			_, err := o.RescheduleMatching(ctx, actor, poisoned, ops.Bulk{NotBefore: r.clock.Now().Add(time.Hour)})
			return err
		},
		"rerun":         func() error { return o.Rerun(ctx, actor, handled("ship", "1"), reason) },
		"delete":        func() error { return o.Delete(ctx, actor, ops.MessageRef{ID: "1"}, "1") },
		"replay":        func() error { _, err := o.Replay(ctx, actor, ops.MessageRef{ID: "1"}, ops.Edit{}); return err },
		"view rejected": func() error { _, err := o.Rejected(ctx, actor, rejected); return err },
		"re-accept":     func() error { _, err := o.ReAccept(ctx, actor, rejected); return err },
		"read again": func() error {
			_, err := o.ReadAgain(ctx, actor, envelope.ReadAgain{Channel: "c", Topic: "orders", From: r.clock.Now()})
			return err
		},
		"delete rejected":  func() error { return o.DeleteRejected(ctx, actor, rejected, rejected) },
		"pause":            func() error { return o.Pause(ctx, actor, "mail") },
		"resume":           func() error { return o.Resume(ctx, actor, "mail") },
		"resume_partition": func() error { return o.ResumePartition(ctx, actor, halt) },
		"skip_record":      func() error { return o.SkipRecord(ctx, actor, halt) },
		"forget_topic": func() error {
			return o.ForgetTopic(ctx, actor, ops.TopicRef{Channel: "c", GroupID: "g", Topic: "removed"})
		},
		"cleanup": func() error { _, err := o.Cleanup(ctx, actor); return err },
	}
}

// TestActionWithoutAuditRowIsRefused proves contract 11.3.
func TestActionWithoutAuditRowIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1")
		r.accept("1", "2")
		r.process()
		r.reject(7, "bad")
		r.reject(8, "bad", func(m *models.RejectedMessage) { m.Headers = "[]" })
		require.NoError(t, r.ib.Pause(t.Context(), "ship"))
		r.clock.Advance(2 * time.Hour) // message 2 is due to be cleaned
		r.acceptLater(r.clock.Now().Add(time.Hour), "later")
		require.NoError(t, r.d.DB.Create(&models.Handler{HandlerKey: "mail", Paused: true}).Error)
		r.consumes("c", haltedAtBad)
		r.removed()
		before := r.rows()
		refuse, allow := `ALTER TABLE inbox_audit ADD CONSTRAINT refused CHECK (false)`,
			`ALTER TABLE inbox_audit DROP CONSTRAINT refused`
		if r.d.Dialect == "sqlite" {
			refuse, allow = `CREATE TRIGGER refused BEFORE INSERT ON inbox_audit BEGIN SELECT RAISE(ABORT, 'refused'); END`,
				`DROP TRIGGER refused`
		}
		inboxtest.Exec(t, r.d.DB, refuse)
		for name, act := range actions(t, r, ada, r.ref("mail", "1")) {
			require.ErrorIs(t, act(), ops.ErrNotAudited, name)
			require.Equal(t, before, r.rows(), name)
		}
		_, err := r.ops.ReAccept(t.Context(), ada, "00000000-0000-7000-8000-000000000008")
		require.ErrorIs(t, err, ops.ErrNotAudited, "one that is still bad")
		require.Equal(t, before, r.rows(), "its reason stays")
		inboxtest.Exec(t, r.d.DB, allow)
		require.Empty(t, r.audit())
	})
}

func TestEveryActionLeavesItsAuditRow(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.acceptLater(r.clock.Now().AddDate(1, 0, 0), "later")
		ids := []string{"view", "retry", "discard", "rerun", "retry all", "discard all", "pause", "resume", "replay",
			"view rejected", "re-accept", "resume_partition", "skip_record", "forget_topic", "reschedule", "reschedule all",
			"cleanup", "delete", "delete rejected"}
		r.consumes("c", haltedAtBad)
		r.removed()
		for i, name := range ids {
			if i > 0 {
				require.NoError(t, r.ops.Delete(t.Context(), "janitor", ops.MessageRef{ID: "1"}, "1"))
			}
			r.poison("mail", "no", "1")
			r.accept("1")
			r.process()
			inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_rejected_messages`)
			r.reject(7, "bad")
			before := len(r.audit())
			require.NoError(t, actions(t, r, ada, r.ref("mail", "1"))[name](), name)
			written := r.audit()[before:]
			switch name {
			case "cleanup":
				require.Equal(t, []string{"ada cleanup inbox", "ada cleanup inbox"}, written)
			case "retry all", "discard all", "reschedule all": // a chunk and the end
				line := "ada " + strings.TrimSuffix(name, " all") + " matching statuses"
				require.Equal(t, []string{line, line}, written)
			default:
				require.Len(t, written, 1, name)
				require.True(t, strings.HasPrefix(written[0], "ada "+
					strings.NewReplacer(" rejected", "_rejected", "re-accept", "re_accept").Replace(name)+" "), written[0])
			}
			if name == "re-accept" {
				inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_messages WHERE id = 'r7'`)
			}
			if name == "delete" {
				r.accept("1")
			}
		}
	})
}
