package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// acceptInLane accepts messages with one ordering key.
func (r *rig) acceptInLane(key string, ids ...string) {
	r.t.Helper()
	r.clock.Advance(time.Second)
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.OrderingKey = []byte(key)
		_, err := r.ib.Accept(r.t.Context(), m)
		require.NoError(r.t, err)
	}
}

// of returns what a handler has handled.
func (r *rig) of(key string) []string {
	return slices.DeleteFunc(r.handled(), func(at string) bool { return !strings.HasPrefix(at, key+"/") })
}

// TestReasonOfADiscardIsAudited proves contract 11.1: for one status, and for all that match in the rows of each chunk
// and of the end. A retry has none.
func TestReasonOfADiscardIsAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.fail("mail", "one", handler.Poison(errors.New("boom")))
		r.fail("mail", "other", handler.Poison(errors.New("boom")))
		r.accept("one", "other")
		r.process()
		ref, long := r.ref("mail", "one"), strings.Repeat("x", 501)
		require.ErrorIs(t, r.ops.Discard(t.Context(), ada, ref, long), ops.ErrBadInput)
		require.NoError(t, r.ops.Discard(t.Context(), ada, ref, "the customer has cancelled"))
		all := ops.Filter{HandlerKeys: []string{"mail"}}
		for _, bulk := range []ops.Bulk{{Reason: long}, {Reason: "x\x00"}} {
			_, err := r.ops.DiscardMatching(t.Context(), ada, all, bulk)
			require.ErrorIs(t, err, ops.ErrBadInput)
		}
		_, err := r.ops.RetryMatching(t.Context(), ada, all, ops.Bulk{Reason: "why not"})
		require.ErrorIs(t, err, ops.ErrBadInput)
		result, err := r.ops.DiscardMatching(t.Context(), ada, all, ops.Bulk{Reason: "a test order"})
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Done)
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionDiscard}, "", ops.MaxLimit)
		require.NoError(t, err)
		require.Len(t, page.Items, 3)
		for i, reason := range []string{"a test order", "a test order", "the customer has cancelled"} {
			require.Contains(t, page.Items[i].Detail, `"reason":"`+reason+`"`)
			require.Contains(t, page.Items[i].Summary(), "reason "+reason)
		}
	})
}

// TestIdleStatusesMayBeDiscarded proves contract 11.1: pending, failing and waiting statuses are given up like
// poisoned ones.
func TestIdleStatusesMayBeDiscarded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.fail("mail", "failing", errors.New("boom"))
		r.accept("failing")
		r.process()
		r.accept("pending", "waiting")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true WHERE message_id = 'waiting'`)
		for _, id := range []string{"pending", "failing", "waiting"} {
			before := r.status("mail", id)
			require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", id), ""), id)
			after := r.status("mail", id)
			require.Equal(t, models.OutcomeDiscarded, after.Outcome)
			require.True(t, r.clock.Now().Equal(*after.CompletedAt))
			require.Equal(t, before.Version+1, after.Version)
			require.False(t, after.IsWaiting)
			require.Nil(t, after.NextAttemptAt)
			require.Equal(t, before.LastError, after.LastError, "for people to read")
			require.ErrorIs(t, r.ops.Discard(t.Context(), ada, ops.Ref{StatusID: after.ID}, ""), ops.ErrNotFound)
			require.ErrorIs(t, r.ops.Retry(t.Context(), ada, ops.Ref{StatusID: after.ID}), ops.ErrNotFound)
			require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, r.ib, id)[0].Outcome)
		}
		require.Len(t, r.audit(), 3)
		r.fail("mail", "failing", nil)
		r.clock.Advance(10 * time.Minute)
		r.process()
		require.Empty(t, r.of("mail"), "nor by a redelivery")
	})
}

// TestDiscardedPendingStatusesAdvanceTheirLane proves contract 5.12: whatever is discarded, the rest of the lane runs
// once and in order.
func TestDiscardedPendingStatusesAdvanceTheirLane(t *testing.T) {
	for name, each := range map[string]struct {
		discarded, ran []string
	}{
		"the head":                {[]string{"1"}, []string{"mail/2", "mail/3", "mail/4"}},
		"the head and the next":   {[]string{"1", "2"}, []string{"mail/3", "mail/4"}},
		"the next, then the head": {[]string{"2", "1"}, []string{"mail/3", "mail/4"}},
		"one in the middle":       {[]string{"3"}, []string{"mail/1", "mail/2", "mail/4"}},
		"all":                     {[]string{"4", "3", "2", "1"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				r := newRig(t, d, nil, handler.Ordered())
				r.fail("mail", "1", errors.New("boom"))
				r.acceptInLane("lane", "1", "2", "3", "4")
				r.process()
				// As after a claim that found more rows after the head than it wanted.
				inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true, version = version + 1 WHERE handler_key = 'mail' AND message_id <> '1'`)
				for _, id := range each.discarded {
					require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", id), ""), id)
				}
				if each.discarded[0] == "1" && len(each.discarded) == 1 {
					require.False(t, r.status("mail", "2").IsWaiting, "at once, not by a sweep")
				}
				r.fail("mail", "1", nil)
				r.clock.Advance(10 * time.Minute)
				for range 4 {
					r.process()
				}
				require.Equal(t, each.ran, r.of("mail"))
			})
		})
	}
}

// TestDiscardOfAClaimedStatusIsRefused proves contract 11.1, 5.12: what a worker has claimed is left alone, one by one
// and by an action on all that match, and its lane has no second row that runs.
func TestDiscardOfAClaimedStatusIsRefused(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.acceptInLane("lane", "1", "2", "3")
		seen := r.ref("mail", "1")
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at, holds_lane = true, version = version + 1 WHERE handler_key = 'mail' AND message_id = '1'`)
		require.ErrorIs(t, r.ops.Discard(t.Context(), ada, seen, ""), ops.ErrStale)
		require.ErrorIs(t, r.ops.Discard(t.Context(), ada, ops.Ref{StatusID: seen.StatusID}, ""), ops.ErrProcessing)
		require.Empty(t, r.audit())
		done, err := r.ops.DiscardMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"},
			States: []ops.State{ops.StatePending, ops.StatePoisoned}}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Done)
		require.True(t, r.status("mail", "1").HoldsLane)
		require.Nil(t, r.status("mail", "1").CompletedAt)
	})
}

// TestDiscardsRacingAWorkerLeaveNothing discards pending statuses while a worker runs their lanes: each runs
// once or is discarded, those that run keep their order, and no lane is stuck.
func TestDiscardsRacingAWorkerLeaveNothing(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const lanes, each = 5, 30
		r := newRig(t, d, nil, handler.Ordered())
		for lane := range lanes {
			var ids []string
			for i := range each {
				ids = append(ids, fmt.Sprintf("%d-%02d", lane, i))
			}
			r.acceptInLane(fmt.Sprint(lane), ids...)
		}
		var discarded ops.BulkResult
		operator := make(chan error, 1)
		go func() {
			var err error
			discarded, err = r.ops.DiscardMatching(t.Context(), ada, ops.Filter{
				HandlerKeys: []string{"mail"}, States: []ops.State{ops.StatePending}}, ops.Bulk{ChunkSize: 3, Max: 60})
			operator <- err
		}()
		r.process()
		require.NoError(t, inboxtest.Receive(t, operator, "the operator"))
		inboxtest.Eventually(t, func() bool { r.process(); return inboxtest.AllCompleted(t, r.ib) }, "all lanes")
		ran := r.of("mail")
		require.EqualValues(t, lanes*each, int64(len(ran))+discarded.Done)
		last := map[byte]string{}
		for _, at := range ran {
			id := strings.TrimPrefix(at, "mail/")
			require.Less(t, last[id[0]], id)
			last[id[0]] = id
		}
	})
}

// TestAllStatusesOfARemovedHandlerAreDiscarded proves contract 5.7, 11.1: statuses of a handler that no program has any
// more are discarded by its key, lanes included, after a count.
func TestAllStatusesOfARemovedHandlerAreDiscarded(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.poison("mail", "no", "head")
		for lane, ids := range map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b1", "b2", "b3", "b4"},
			"parked": {"head", "p1", "p2", "p3"}} {
			r.acceptInLane(lane, ids...)
		}
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true, poisoned_at = created_at WHERE handler_key = 'mail' AND message_id = 'head'`)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true WHERE handler_key = 'mail' AND message_id NOT IN ('head', 'a1', 'b1')`)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET handler_key = 'removed' WHERE handler_key = 'mail'`)
		removed := ops.Filter{HandlerKeys: []string{"removed"}, States: []ops.State{ops.StatePending}}
		beside, err := ops.New(d.DB, patient, func(o *ops.Options) { o.Clock = r.clock })
		require.NoError(t, err)
		_, err = beside.DiscardMatching(t.Context(), ada, ops.Filter{States: removed.States}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput, "not everything")
		counted, err := beside.DiscardMatching(t.Context(), ada, removed, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.Count{N: 10}, counted.Matched)
		result, err := beside.DiscardMatching(t.Context(), ada, removed, ops.Bulk{ChunkSize: 2, Max: 10})
		require.NoError(t, err)
		require.EqualValues(t, 10, result.Done, "although discarding moves lanes on")
		require.Zero(t, result.Skipped)
		require.False(t, result.More)
		left := slices.DeleteFunc(inboxtest.Statuses(t, r.ib), func(s models.HandlerStatus) bool {
			return s.HandlerKey != "removed" || s.CompletedAt != nil
		})
		require.Len(t, left, 1, "poisoned ones are named by themselves")
		removed.States = nil
		result, err = beside.DiscardMatching(t.Context(), ada, removed, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Done)
	})
}

// TestDiscardOfARenamedRowEndsItsTwin proves contract 4.2: of the two rows that a rolling rename has left, the
// discarded one decides, and the other never runs.
func TestDiscardOfARenamedRowEndsItsTwin(t *testing.T) {
	for _, discarded := range []string{"old", "new"} {
		t.Run(discarded, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				ran := 0
				h := inboxtest.Do("new", func(context.Context, inboxtest.Bytes) error { ran++; return nil },
					handler.LegacyKeys("old"))
				ib := inboxtest.New(t, d.DB, inboxtest.Handlers(h))
				before := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("old", inboxtest.Nothing)))
				inboxtest.Accept(t, before, "1")
				inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET handler_key = 'new'`)
				inboxtest.Accept(t, before, "1")
				require.Len(t, inboxtest.Statuses(t, ib), 2)
				o, err := ib.Ops()
				require.NoError(t, err)
				require.NoError(t, o.Discard(t.Context(), ada, ops.Ref{StatusID: inboxtest.Status(t, ib, "1", discarded).ID}, ""))
				inboxtest.Process(t, ib)
				require.Zero(t, ran)
				require.True(t, inboxtest.AllCompleted(t, ib))
			})
		})
	}
}

// TestDiscardedHeadWakesItsLanesNextStatus proves contract 4.7: what a discard frees does not wait for the next poll.
func TestDiscardedHeadWakesItsLanesNextStatus(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ran, failed := make(chan string, 10), make(chan struct{}, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			if m.ID == "1" {
				defer func() { failed <- struct{}{} }()
				return handler.RetryAfter(time.Hour, errors.New("no"))
			}
			ran <- m.ID
			return nil
		}, handler.Ordered())))
		o, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		for _, id := range []string{"1", "2"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("k")
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Receive(t, failed, "the head's failure")
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "1", "h").ErrorCount == 1 }, "its result")
		require.NoError(t, o.Discard(t.Context(), ada, ops.Ref{StatusID: inboxtest.Status(t, ib, "1", "h").ID}, ""))
		require.Equal(t, "2", inboxtest.Receive(t, ran, "the next of the lane"))
	})
}
