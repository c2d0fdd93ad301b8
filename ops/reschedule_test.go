package ops_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// acceptLater accepts messages that do not run before a time.
func (r *rig) acceptLater(at time.Time, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.NotBefore = at
		_, err := r.ib.Accept(r.t.Context(), m)
		require.NoError(r.t, err)
	}
}

// TestStatusThatWaitsForItsTimeIsNotLate proves contract 4.8, 11.1: it is pending, not due, and told from one that
// waits for another attempt.
func TestStatusThatWaitsForItsTimeIsNotLate(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		hour := r.clock.Now().Add(time.Hour)
		r.acceptLater(hour, "later")
		r.fail("mail", "failing", handler.RetryAfter(2*time.Hour, errors.New("boom")))
		r.accept("failing")
		r.process()
		v, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		for _, h := range v.Handlers {
			require.Zero(t, h.Due.N, h.HandlerKey)
			require.Zero(t, h.OldestDueAge, h.HandlerKey)
			require.EqualValues(t, map[string]int{"mail": 2, "ship": 1, "alone": 0}[h.HandlerKey], h.Pending.N)
		}
		notBefore := func() map[string]time.Time {
			t.Helper()
			page, err := r.ops.List(t.Context(), ops.Filter{HandlerKeys: []string{"mail"}}, "", 10)
			require.NoError(t, err)
			at := map[string]time.Time{}
			for _, s := range page.Items {
				require.Equal(t, s.MessageID == "failing", s.Failing)
				at[s.MessageID] = s.NotBefore()
			}
			return at
		}
		require.Equal(t, map[string]time.Time{"later": hour, "failing": {}}, notBefore())
		r.clock.Advance(time.Hour)
		r.process()
		require.Equal(t, map[string]time.Time{"later": {}, "failing": {}}, notBefore(), "it has completed")
		require.Equal(t, []string{"mail/later"}, r.of("mail"))
	})
}

// TestRescheduledStatusRunsAtItsNewTime proves contract 11.1.
func TestRescheduledStatusRunsAtItsNewTime(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		hour := r.clock.Now().Add(time.Hour)
		r.acceptLater(hour, "sooner", "later")
		r.fail("mail", "failing", errors.New("boom"))
		r.accept("failing", "put off")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET completed_at = created_at WHERE handler_key = 'ship'`)
		require.NoError(t, r.ops.Reschedule(t.Context(), ada, r.ref("mail", "put off"), hour.Add(time.Hour)))
		r.process()
		before := r.status("mail", "failing")
		for id, at := range map[string]time.Time{"sooner": {}, "later": hour.Add(2*time.Hour + 999*time.Nanosecond),
			"failing": r.clock.Now().Add(-time.Hour)} {
			version := r.status("mail", id).Version
			require.NoError(t, r.ops.Reschedule(t.Context(), ada, r.ref("mail", id), at), id)
			require.Equal(t, version+1, r.status("mail", id).Version)
		}
		require.Equal(t, hour.Add(2*time.Hour), r.status("mail", "later").NextAttemptAt.UTC())
		require.Equal(t, r.clock.Now(), r.status("mail", "sooner").NextAttemptAt.UTC())
		after := r.status("mail", "failing")
		require.Equal(t, 1, after.ErrorCount, "no retry: what has failed keeps its counts")
		require.Equal(t, before.LastError, after.LastError)
		require.Equal(t, before.Attempts, after.Attempts)
		require.Zero(t, after.RequeuedCount)
		r.fail("mail", "failing", nil)
		r.process()
		require.ElementsMatch(t, []string{"mail/sooner", "mail/failing"}, r.of("mail"))
		r.clock.Advance(2 * time.Hour)
		r.process()
		require.Contains(t, r.of("mail"), "mail/put off")
		require.NotContains(t, r.of("mail"), "mail/later")
		r.clock.Advance(time.Hour)
		r.process()
		require.Contains(t, r.of("mail"), "mail/later")

		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionReschedule}, "", 10)
		require.NoError(t, err)
		require.Len(t, page.Items, 4)
		require.Contains(t, page.Items[3].Detail, `"not_before":"2026-01-01T14:00:00Z"`)
		require.Contains(t, page.Items[3].Summary(), "not before 2026-01-01T14:00:00Z")
	})
}

// TestOnlyPendingStatusesAreRescheduled proves contract 11.1: fenced by their version.
func TestOnlyPendingStatusesAreRescheduled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "boom", "poisoned")
		r.accept("poisoned", "completed")
		r.process()
		hour := r.clock.Now().Add(time.Hour)
		r.acceptLater(hour, "claimed", "pending")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'claimed'`)
		rows := r.rows()
		stale := r.ref("mail", "pending")
		stale.Version++
		for _, each := range []struct {
			ref  ops.Ref
			at   time.Time
			want error
		}{
			{r.ref("mail", "poisoned"), hour, ops.ErrNotPending},
			{ops.Ref{StatusID: r.ref("mail", "completed").StatusID}, hour, ops.ErrNotFound},
			{r.ref("mail", "completed"), hour, ops.ErrStale},
			{r.ref("mail", "claimed"), hour, ops.ErrProcessing},
			{stale, hour, ops.ErrStale},
			{r.ref("mail", "pending"), r.clock.Now().AddDate(10, 0, 1), ops.ErrBadInput},
			{ops.Ref{StatusID: "no"}, hour, ops.ErrBadInput},
		} {
			require.ErrorIs(t, r.ops.Reschedule(t.Context(), ada, each.ref, each.at), each.want)
		}
		require.Equal(t, rows, r.rows())
		require.Empty(t, r.audit())
	})
}

// TestAllMatchingStatusesAreRescheduledOnce proves contract 11.1, also where they move in the order of the list.
func TestAllMatchingStatusesAreRescheduledOnce(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		hour := r.clock.Now().Add(time.Hour)
		r.acceptLater(hour, "a", "b", "c", "d", "e")
		r.poison("mail", "boom", "poisoned")
		r.accept("poisoned")
		r.process()
		mail := ops.Filter{HandlerKeys: []string{"mail"}}
		counted, err := r.ops.RescheduleMatching(t.Context(), ada, mail, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.Count{N: 5}, counted.Matched)
		for _, at := range []time.Time{hour.Add(time.Hour), hour.Add(time.Minute), {}} {
			version := r.status("mail", "c").Version
			done, err := r.ops.RescheduleMatching(t.Context(), ada, mail, ops.Bulk{ChunkSize: 2, NotBefore: at, Max: 5})
			require.NoError(t, err)
			require.EqualValues(t, 5, done.Done, at)
			require.False(t, done.More)
			require.Equal(t, version+1, r.status("mail", "c").Version)
		}
		require.True(t, r.status("mail", "poisoned").IsPoisoned)
		r.process()
		require.Len(t, r.of("mail"), 5)

		_, err = r.ops.RescheduleMatching(t.Context(), ada, ops.Filter{}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput, "it takes everything")
		mail.States = []ops.State{ops.StatePoisoned}
		_, err = r.ops.RescheduleMatching(t.Context(), ada, mail, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.RetryMatching(t.Context(), ada, mail, ops.Bulk{NotBefore: hour})
		require.ErrorIs(t, err, ops.ErrBadInput)
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionReschedule}, "", ops.MaxLimit)
		require.NoError(t, err)
		require.Contains(t, page.Items[0].Summary(), "not before now")
	})
}

// TestRescheduledHeadHoldsItsLaneAndLetsItGo proves contract 11.1, 5.12.
func TestRescheduledHeadHoldsItsLaneAndLetsItGo(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.acceptInLane("lane", "1", "2")
		hour := r.clock.Now().Add(time.Hour)
		require.NoError(t, r.ops.Reschedule(t.Context(), ada, r.ref("mail", "1"), hour))
		r.process()
		require.Empty(t, r.of("mail"))
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true WHERE message_id = '2' AND handler_key = 'mail'`)
		require.NoError(t, r.ops.Reschedule(t.Context(), ada, r.ref("mail", "2"), time.Time{}))
		require.True(t, r.status("mail", "2").IsWaiting, "now, but after the one before it")
		r.process()
		require.Empty(t, r.of("mail"))
		require.NoError(t, r.ops.Reschedule(t.Context(), ada, r.ref("mail", "1"), time.Time{}))
		r.process()
		require.Equal(t, []string{"mail/1", "mail/2"}, r.of("mail"))
	})
}

// TestRescheduleToNowWakesTheWorker proves contract 11.1 with a worker that would not poll.
func TestRescheduleToNowWakesTheWorker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			ran <- m.ID
			return nil
		})))
		inboxtest.Start(t, ib)
		m := inboxtest.Message("1")
		m.NotBefore = time.Now().Add(time.Hour)
		_, err := ib.Accept(t.Context(), m)
		require.NoError(t, err)
		o, err := ib.Ops()
		require.NoError(t, err)
		require.NoError(t, o.Reschedule(t.Context(), ada, ops.Ref{StatusID: inboxtest.Status(t, ib, "1", "h").ID}, time.Now()))
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the message that an operator runs now"))
	})
}

// TestBackfilledStatusHasItsHandlersTime proves contract 4.8, 11.1.
func TestBackfilledStatusHasItsHandlersTime(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.accept("later", "now")
		r.clock.Advance(time.Second)
		hour := r.clock.Now().Add(time.Hour)
		added := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = r.clock }),
			inbox.Channel("c", inbox.On("t", inboxtest.Do("mail", inboxtest.Nothing), inboxtest.Do("new", inboxtest.Nothing,
				handler.NotBefore(func(m handler.RawMessage) time.Time {
					if m.ID == "later" {
						return hour
					}
					return hour.Add(-2 * time.Hour)
				})))))
		o, err := added.Ops(patient)
		require.NoError(t, err)
		done, err := o.Backfill(t.Context(), ada, "new", r.clock.Now().Add(-time.Hour), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Done)
		require.Equal(t, hour, inboxtest.Status(t, added, "later", "new").NextAttemptAt.UTC())
		require.Nil(t, inboxtest.Status(t, added, "now", "new").NextAttemptAt)
	})
}
