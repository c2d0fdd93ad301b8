package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// poisonMany makes mail poison n messages, every other one with another error, and ship all of
// them.
func poisonMany(r *rig, n int) (ids []string) {
	for i := range n {
		id := fmt.Sprintf("m%02d", i)
		ids = append(ids, id)
		r.poison("mail", []string{"no such order 1", "customer 2 is locked"}[i%2], id)
	}
	r.poison("ship", "no such order 3", ids...)
	r.accept(ids...)
	r.process()
	return ids
}

// TestRetryAllOfAFailureGroupAfterADryRun proves contract 11.1, 11.2.
func TestRetryAllOfAFailureGroupAfterADryRun(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ids := poisonMany(r, 25)
		failures, err := r.ops.Failures(t.Context(), ops.Filter{HandlerKeys: []string{"mail"}})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 2)
		require.EqualValues(t, 13, failures.Groups[0].Poisoned)
		group := ops.Filter{Fingerprint: failures.Groups[0].Fingerprint}
		before := r.rows()
		result, err := r.ops.RetryMatching(t.Context(), ada, group, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.BulkResult{Matched: ops.Count{N: 13}}, result)
		require.Equal(t, before, r.rows())
		require.Equal(t, []string{"ada retry matching statuses"}, r.audit())

		for _, id := range ids {
			r.fail("mail", id, nil)
		}
		var reported []ops.BulkResult
		result, err = r.ops.RetryMatching(t.Context(), ada, group, ops.Bulk{ChunkSize: 5, Progress: func(b ops.BulkResult) {
			reported = append(reported, b)
		}})
		require.NoError(t, err)
		require.EqualValues(t, 13, result.Done)
		require.Zero(t, result.Skipped)
		require.Len(t, reported, 3)
		require.EqualValues(t, 5, reported[0].Done)
		require.Equal(t, result, reported[2])
		r.process()
		require.Len(t, r.handled(), 13)
		require.Len(t, r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}}, 100), 12+25)

		// Each chunk's row has the actor, the filter and the statuses.
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Actor: ada, Action: ops.ActionRetry}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 1+3+1, "the dry run, chunks, the end")
		noted := 0
		for _, entry := range page.Items {
			var detail struct {
				Filter   ops.Filter `json:"filter"`
				Statuses []string   `json:"status_ids"`
			}
			require.NoError(t, json.Unmarshal([]byte(entry.Detail), &detail))
			require.Equal(t, group, detail.Filter)
			noted += len(detail.Statuses)
		}
		require.Equal(t, 13, noted)
	})
}

// TestRetryAllIncludesFailingStatusesIfFiltered proves contract 11.1.
func TestRetryAllIncludesFailingStatusesIfFiltered(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "poisoned")
		r.fail("mail", "failing", errors.New("boom"))
		r.accept("poisoned", "failing", "fine")
		r.process()
		filter := ops.Filter{HandlerKeys: []string{"mail"}, States: []ops.State{ops.StateFailing}}
		_, err := r.ops.RetryMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"},
			States: []ops.State{ops.StatePending}}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput)
		counted, err := r.ops.RetryMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, counted.Matched.N)
		filter.States = append(filter.States, ops.StatePoisoned)
		done, err := r.ops.RetryMatching(t.Context(), ada, filter, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Done)
		for _, id := range []string{"poisoned", "failing"} {
			require.Equal(t, 1, r.status("mail", id).RequeuedCount)
		}
	})
}

func TestDiscardAllMatchingLeavesTheOthers(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		poisonMany(r, 10)
		r.accept("waiting")
		result, err := r.ops.DiscardMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"}, ErrorText: "locked"},
			ops.Bulk{ChunkSize: 2})
		require.NoError(t, err)
		require.EqualValues(t, 5, result.Done)
		for _, s := range inboxtest.Statuses(t, r.ib) {
			require.Equal(t, s.HandlerKey == "mail" && s.LastError != nil && *s.LastError == "poison: customer 2 is locked",
				s.Outcome == models.OutcomeDiscarded, s.MessageID)
		}
		result, err = r.ops.DiscardMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"}, ErrorText: "locked"},
			ops.Bulk{})
		require.NoError(t, err)
		require.Zero(t, result.Done)
		require.Len(t, r.audit(), 3+1+1, "chunks that changed something, and the two ends")
	})
}

// TestBulkActionTakesNoMoreThanWasConfirmed proves contract 11.1: an operator confirms a number and
// has not seen what is poisoned after that.
func TestBulkActionTakesNoMoreThanWasConfirmed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1", "2", "3", "4", "5", "6", "7", "8")
		r.accept("1", "2", "3", "4", "5")
		r.process()
		filter := ops.Filter{HandlerKeys: []string{"mail"}}
		counted, err := r.ops.DiscardMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.Count{N: 5}, counted.Matched)
		r.accept("6", "7", "8")
		r.process()
		result, err := r.ops.DiscardMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 2, Max: counted.Matched.N})
		require.NoError(t, err)
		require.EqualValues(t, 5, result.Done)
		require.True(t, result.More)
		require.Len(t, r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}}, 100), 3)
		result, err = r.ops.DiscardMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 2, Max: 3})
		require.NoError(t, err)
		require.EqualValues(t, 3, result.Done)
		require.False(t, result.More)
		_, err = r.ops.DiscardMatching(t.Context(), ada, filter, ops.Bulk{Max: -1})
		require.ErrorIs(t, err, ops.ErrBadInput)
	})
}

func TestBulkActionEndsBetweenChunksAndReportsProgress(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		poisonMany(r, 10)
		ctx, cancel := context.WithCancel(t.Context())
		result, err := r.ops.RetryMatching(ctx, ada, ops.Filter{HandlerKeys: []string{"mail"}},
			ops.Bulk{ChunkSize: 3, Progress: func(ops.BulkResult) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 3, result.Done)
		require.Len(t, r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}, HandlerKeys: []string{"mail"}}, 100), 7)
		require.Len(t, r.audit(), 2, "the chunk and the end")

		// The audit fails in the second chunk: the first stays done.
		result, err = r.ops.RetryMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"}},
			ops.Bulk{ChunkSize: 3, Progress: func(ops.BulkResult) {
				inboxtest.Exec(t, r.d.DB, `ALTER TABLE inbox_audit RENAME TO elsewhere`)
			}})
		require.ErrorIs(t, err, ops.ErrNotAudited)
		require.EqualValues(t, 3, result.Done)
		require.Len(t, r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}, HandlerKeys: []string{"mail"}}, 100), 4)
	})
}

// TestBulkRetryRetriesEachStatusOnce proves that a status that is poisoned again while others of
// the list are retried stays poisoned, so the action ends.
func TestBulkRetryRetriesEachStatusOnce(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		poisonMany(r, 9)
		result, err := r.ops.RetryMatching(t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"}},
			ops.Bulk{ChunkSize: 2, Progress: func(ops.BulkResult) { r.process() }})
		require.NoError(t, err)
		require.EqualValues(t, 9, result.Done)
		for _, s := range inboxtest.Statuses(t, r.ib) {
			if s.HandlerKey == "mail" {
				require.True(t, s.IsPoisoned)
				require.Equal(t, 1, s.RequeuedCount)
			}
		}
	})
}

// TestConcurrentBulkActionsShareTheStatuses runs two operators, of whom one retries and one
// discards the same statuses.
func TestConcurrentBulkActionsShareTheStatuses(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const n = 60
		poisonMany(r, n)
		type outcome struct {
			result ops.BulkResult
			err    error
		}
		outcomes := make(chan outcome, 4)
		for i := range 4 {
			go func() {
				act := r.ops.RetryMatching
				if i%2 == 0 {
					act = r.ops.DiscardMatching
				}
				result, err := act(t.Context(), ops.Actor(fmt.Sprint("operator ", i)), ops.Filter{HandlerKeys: []string{"mail"}},
					ops.Bulk{ChunkSize: 7})
				outcomes <- outcome{result, err}
			}()
		}
		var done int64
		for range 4 {
			o := inboxtest.Receive(t, outcomes, "an operator")
			require.NoError(t, o.err)
			done += o.result.Done
		}
		require.EqualValues(t, n, done)
		for _, s := range inboxtest.Statuses(t, r.ib) {
			if s.HandlerKey == "mail" {
				require.False(t, s.IsPoisoned)
				require.Equal(t, s.RequeuedCount == 0, s.Outcome == models.OutcomeDiscarded)
			}
		}
	})
}

// TestOperatorsFreeALane frees a lane that is parked at its poisoned head (contract 5.12).
func TestOperatorsFreeALane(t *testing.T) {
	for name, each := range map[string]struct {
		act func(r *rig) error
		ran []string
	}{
		"retried, the head is next": {func(r *rig) error {
			r.fail("mail", "1", nil)
			return r.ops.Retry(r.t.Context(), ada, r.ref("mail", "1"))
		}, []string{"mail/1", "mail/2", "mail/3"}},
		"discarded, it lets the others go": {func(r *rig) error {
			return r.ops.Discard(r.t.Context(), ada, r.ref("mail", "1"), "")
		}, []string{"mail/2", "mail/3"}},
		"deleted, too": {func(r *rig) error {
			return r.ops.Delete(r.t.Context(), ada, ops.MessageRef{ID: "1"}, "1")
		}, []string{"mail/2", "mail/3"}},
		"all at once": {func(r *rig) error {
			_, err := r.ops.DiscardMatching(r.t.Context(), ada, ops.Filter{HandlerKeys: []string{"mail"}}, ops.Bulk{})
			return err
		}, []string{"mail/2", "mail/3"}},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				r := newRig(t, d, nil, handler.Ordered())
				r.poison("mail", "no", "1")
				for _, id := range []string{"1", "2", "3"} {
					m := inboxtest.Message(id)
					m.OrderingKey = []byte("lane")
					_, err := r.ib.Accept(t.Context(), m)
					require.NoError(t, err)
				}
				r.process()
				// As after a claim that found more rows after the head than it wanted.
				inboxtest.Exec(t, d.DB,
					`UPDATE inbox_handler_statuses SET is_waiting = true, version = version + 1 WHERE handler_key = 'mail' AND message_id <> '1'`)
				require.Equal(t, []string{"mail/3", "mail/2"}, r.list(ops.Filter{States: []ops.State{ops.StatePending}}, 1))
				require.NoError(t, each.act(r))
				require.Equal(t, each.ran[0] == "mail/1", r.status("mail", "2").IsWaiting, "at once, not by a sweep")
				for range 3 {
					r.process()
				}
				require.Equal(t, each.ran, slices.DeleteFunc(r.handled(), func(at string) bool { return at[:4] == "ship" }))
			})
		})
	}
}

// TestRetryWakesTheProcessorOfTheSameProcess proves contract 4.7: what an operator made due does
// not wait for the next poll.
func TestRetryWakesTheProcessorOfTheSameProcess(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		poisoned := make(chan struct{}, 1)
		mended := false
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if !mended {
					mended = true
					return handler.Poison(errors.New("no"))
				}
				ran <- m.ID
				return nil
			})), inbox.Configure(func(o *inbox.Options) {
				o.Hooks = handler.Hooks{OnPoisoned: func(context.Context, handler.AttemptEvent) {
					poisoned <- struct{}{}
				}}
			}))
		o, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, poisoned, "the poisoning")
		status := inboxtest.Status(t, ib, "1", "h")
		require.NoError(t, o.Retry(t.Context(), ada, ops.Ref{StatusID: status.ID, Version: int64(status.Version)}))
		require.Equal(t, "1", inboxtest.Receive(t, ran, "the retried message"))
	})
}
