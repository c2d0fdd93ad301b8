package ops_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// TestListFindsByEveryCriterion proves contract 11.1.
func TestListFindsByEveryCriterion(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", `No such order "17"`, "p1", "p2")
		r.poison("ship", "address unknown: ÄGYPTEN", "p1")
		r.fail("mail", "f1", handler.RetryAfter(time.Hour, errors.New("timeout after 3s")))
		r.accept("p1") // at :01
		r.accept("p2") // at :02
		r.accept("f1") // at :03
		r.accept("d1") // at :04
		r.process()
		r.poison("mail", "no", "x1")
		r.accept("x1") // at :05
		r.process()
		require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", "x1"), ""))
		r.clock.Advance(-time.Minute) // f1 is not due again
		other := inboxtest.Message("o1")
		other.Type = "alone"
		_, err := r.ib.Accept(t.Context(), other)
		require.NoError(t, err)
		r.clock.Advance(time.Minute)
		r.accept("run") // at :06
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'run' AND handler_key = 'ship'`)
		at := func(s int) time.Time { return inboxtest.Noon.Add(time.Duration(s) * time.Second) }
		only := func(states ...ops.State) ops.Filter { return ops.Filter{States: states} }
		failures, err := r.ops.Failures(t.Context(), ops.Filter{HandlerKeys: []string{"mail"}})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 2)
		require.EqualValues(t, 2, failures.Groups[0].Poisoned)

		for name, each := range map[string]struct {
			filter   ops.Filter
			expected []string
		}{
			"all": {ops.Filter{}, []string{"mail/run", "ship/run", "mail/x1", "ship/x1", "mail/d1", "ship/d1",
				"mail/f1", "ship/f1", "mail/p2", "ship/p2", "mail/p1", "ship/p1", "alone/o1"}},
			"poisoned":   {only(ops.StatePoisoned), []string{"mail/p2", "ship/p1", "mail/p1"}},
			"pending":    {only(ops.StatePending), []string{"mail/f1", "mail/run", "alone/o1"}},
			"failing":    {only(ops.StateFailing), []string{"mail/f1"}},
			"processing": {only(ops.StateProcessing), []string{"ship/run"}},
			"open": {only(ops.StatePoisoned, ops.StatePending, ops.StateProcessing),
				[]string{"mail/p2", "ship/p1", "mail/p1", "mail/f1", "ship/run", "mail/run", "alone/o1"}},
			"discarded":  {only(ops.StateDiscarded), []string{"mail/x1"}},
			"superseded": {only(ops.StateSuperseded), []string{}},
			"completed of a key": {ops.Filter{States: []ops.State{ops.StateCompleted}, HandlerKeys: []string{"mail", "gone"}},
				[]string{"mail/d1"}},
			"a message": {ops.Filter{MessageID: "p1"}, []string{"mail/p1", "ship/p1"}},
			"poisoned of one": {ops.Filter{MessageID: "p1", States: []ops.State{ops.StatePoisoned},
				HandlerKeys: []string{"ship"}}, []string{"ship/p1"}},
			"no message": {ops.Filter{MessageID: "p"}, []string{}},
			"a type":     {ops.Filter{Type: "alone"}, []string{"alone/o1"}},
			"pending of a type": {ops.Filter{Type: "t", States: []ops.State{ops.StatePending}},
				[]string{"mail/f1", "mail/run"}},
			"from":        {ops.Filter{From: at(5)}, []string{"mail/run", "ship/run", "mail/x1", "ship/x1"}},
			"to":          {ops.Filter{To: at(2)}, []string{"mail/p1", "ship/p1", "alone/o1"}},
			"from and to": {ops.Filter{From: at(2), To: at(4)}, []string{"mail/f1", "ship/f1", "mail/p2", "ship/p2"}},
			"poisoned from to": {ops.Filter{From: at(2), To: at(4), States: []ops.State{ops.StatePoisoned}},
				[]string{"mail/p2"}},
			"error text":          {ops.Filter{ErrorText: "NO SUCH"}, []string{"mail/p2", "mail/p1"}},
			"error in any script": {ops.Filter{ErrorText: "ägypten"}, []string{"ship/p1"}},
			"error of a failing":  {ops.Filter{ErrorText: "timeout"}, []string{"mail/f1"}},
			"error as history":    {ops.Filter{ErrorText: "no", States: []ops.State{ops.StateDiscarded}}, []string{"mail/x1"}},
			"no wildcards":        {ops.Filter{ErrorText: "no%order"}, []string{}},
			"fingerprint":         {ops.Filter{Fingerprint: failures.Groups[0].Fingerprint}, []string{"mail/p2", "mail/p1"}},
			"unknown fingerprint": {ops.Filter{Fingerprint: "0"}, []string{}},
			"unknown key": {ops.Filter{HandlerKeys: []string{"gone"}, States: []ops.State{ops.StatePoisoned}},
				[]string{}},
		} {
			for _, limit := range []int{1, 2, 3, 100} {
				listed := r.list(each.filter, limit)
				if slices.Contains([]string{"poisoned", "open"}, name) { // accepted together
					slices.Sort(listed)
					slices.Sort(each.expected)
				}
				require.Equal(t, each.expected, listed, "%s by %d", name, limit)
			}
			count, err := r.ops.Count(t.Context(), each.filter)
			require.NoError(t, err)
			require.Equal(t, ops.Count{N: int64(len(each.expected))}, count, name)
		}
		page, err := r.ops.List(t.Context(), only(ops.StateFailing), "", 0)
		require.NoError(t, err)
		f1 := page.Items[0]
		require.Equal(t, ops.StatePending, f1.State)
		require.True(t, f1.Failing)
		require.Contains(t, f1.LastError, "timeout after 3s")
		require.NotEmpty(t, f1.Fingerprint)
		require.Equal(t, 1, f1.ErrorCount)
		require.Equal(t, "t", f1.Type)
		require.True(t, at(3).Equal(f1.ReceivedAt))
		require.True(t, f1.NextAttemptAt.After(at(3)))
	})
}

// TestPagesAreStableWhileRowsChange proves that a status that keeps its place is on exactly one
// page.
func TestPagesAreStableWhileRowsChange(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprintf("m%02d", i))
		}
		r.poison("mail", "no", ids...)
		r.poison("ship", "no", ids[:10]...)
		r.accept(ids[:25]...)
		r.accept(ids[25:]...)
		r.process()
		r.accept("w1", "w2", "w3", "w4", "w5", "w6", "w7") // all due at once
		for name, filter := range map[string]ops.Filter{
			"poisoned": {States: []ops.State{ops.StatePoisoned}},
			"pending":  {States: []ops.State{ops.StatePending}},
			"open":     {States: []ops.State{ops.StatePoisoned, ops.StatePending}},
			"all":      {},
		} {
			before := r.list(filter, ops.MaxLimit)
			seen := map[string]int{}
			touched := map[string]bool{}
			for cursor, n := ops.Cursor(""), 0; ; n++ {
				page, err := r.ops.List(t.Context(), filter, cursor, 3)
				require.NoError(t, err)
				for _, s := range page.Items {
					seen[s.HandlerKey+"/"+s.MessageID]++
				}
				if cursor = page.Next; cursor == "" {
					break
				}
				// Newer ones are added, one that was shown and one that was not are deleted.
				r.accept(fmt.Sprintf("new %s %d", name, n))
				for _, s := range []ops.Status{page.Items[len(page.Items)-1]} {
					if s.State == ops.StatePoisoned {
						touched[s.HandlerKey+"/"+s.MessageID] = true
						require.NoError(t, r.ops.Discard(t.Context(), ada, s.Ref(), ""))
					}
				}
			}
			for _, at := range before {
				if !touched[at] {
					require.Equal(t, 1, seen[at], "%s: %s", name, at)
				}
			}
			for at, times := range seen {
				require.Equal(t, 1, times, "%s: %s", name, at)
			}
		}
	})
}

// TestSearchStopsAtABoundAndContinues proves that a search never reads millions of rows: it stops,
// reports that, and continues from its cursor.
func TestSearchStopsAtABoundAndContinues(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for batch := range 6 {
			old := inboxtest.Message(fmt.Sprintf("%d-0000", batch))
			old.Type = "alone"
			messages := []handler.RawMessage{old}
			if batch == 0 {
				messages = append(messages, inboxtest.Message("0-0007")) // the needle, with two statuses
			}
			r.clock.Advance(time.Second)
			_, err := r.ib.Accept(t.Context(), messages...)
			require.NoError(t, err)
		}
		r.copies("alone", 1999) // to 12,000
		for name, filter := range map[string]ops.Filter{
			"by due time":      {Type: "t", States: []ops.State{ops.StatePending}, HandlerKeys: []string{"alone", "mail"}},
			"by received time": {Type: "t", HandlerKeys: []string{"mail"}},
		} {
			page, err := r.ops.List(t.Context(), filter, "", 10)
			require.NoError(t, err)
			require.True(t, page.Partial, name)
			require.LessOrEqual(t, page.Scanned, lookLimit, name)
			require.Greater(t, page.Scanned, lookLimit*9/10, name)
			require.Empty(t, page.Items, name)
			require.NotEmpty(t, page.Next, name)
			count, err := r.ops.Count(t.Context(), filter)
			require.NoError(t, err)
			require.Equal(t, ops.Count{Capped: true}, count, name)
			require.Equal(t, []string{"mail/0-0007"}, r.listFrom(page.Next, filter, 10), name)
		}
		count, err := r.ops.Count(t.Context(), ops.Filter{States: []ops.State{ops.StatePending}})
		require.NoError(t, err)
		require.Equal(t, ops.Count{N: lookLimit, Capped: true}, count)
		overview, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		require.Equal(t, "alone", overview.Handlers[0].HandlerKey)
		require.Equal(t, ops.Count{N: lookLimit, Capped: true}, overview.Handlers[0].Due)
		require.Equal(t, ops.Count{N: 1}, overview.Handlers[1].Due)

		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true WHERE handler_key <> 'ship'`)
		for _, each := range []struct {
			keys []string
			want ops.Count
		}{{nil, ops.Count{N: lookLimit, Capped: true}}, {[]string{"mail", "mail", "ship", "none"}, ops.Count{N: 1}},
			{[]string{"alone", "mail"}, ops.Count{N: lookLimit, Capped: true}}} {
			count, err := r.ops.Count(t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}, HandlerKeys: each.keys})
			require.NoError(t, err)
			require.Equal(t, each.want, count, each.keys)
		}
	})
}

// TestOverviewCountsManyHandlers has more handlers than one statement counts.
func TestOverviewCountsManyHandlers(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.acceptOf("alone", "0")
		const handlers = 250
		r.copies("alone", handlers)
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET handler_key = 'h' || (sequence % 10000),
			is_poisoned = sequence % 2 = 0, is_waiting = sequence % 10000 % 6 = 1 WHERE message_id <> '0'`)
		overview, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		require.Len(t, overview.Handlers, 1+handlers)
		require.Equal(t, ops.Count{N: 1}, overview.Handlers[0].Due, "of alone")
		for _, h := range overview.Handlers[1:] {
			var n int64
			_, err := fmt.Sscanf(h.HandlerKey, "h%d", &n)
			require.NoError(t, err)
			one, none := ops.Count{N: 1}, ops.Count{}
			expected := [4]ops.Count{one, one, none, none} // pending and due
			switch {
			case n%2 == 0:
				expected = [4]ops.Count{none, none, none, one}
			case n%6 == 1:
				expected = [4]ops.Count{one, none, one, none}
			}
			require.Equal(t, expected, [4]ops.Count{h.Pending, h.Due, h.Waiting, h.Poisoned}, h.HandlerKey)
		}
	})
}

// TestOverviewCountsWorkOfAWorkerWithAFastClock has a worker whose clock is ahead: what it is
// processing is not due yet here.
func TestOverviewCountsWorkOfAWorkerWithAFastClock(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at, worker_id = id
			WHERE handler_key = 'mail'`)
		o, err := ops.New(r.d.DB, patient, func(o *ops.Options) {
			o.Clock = fxtest.NewClock(r.clock.Now().Add(-20 * time.Second))
		})
		require.NoError(t, err)
		overview, err := o.Overview(t.Context())
		require.NoError(t, err)
		require.Len(t, overview.Handlers, 2)
		mail, ship := overview.Handlers[0], overview.Handlers[1]
		one, none := ops.Count{N: 1}, ops.Count{}
		require.Equal(t, [3]ops.Count{one, none, none}, [3]ops.Count{mail.Processing, mail.Pending, mail.Due})
		require.Equal(t, [3]ops.Count{none, one, none}, [3]ops.Count{ship.Processing, ship.Pending, ship.Due})
		require.Zero(t, ship.OldestDueAge)
	})
}

func TestBadInputIsATypedError(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.accept("1", "2", "3")
		page, err := r.ops.List(ctx, ops.Filter{}, "", 1)
		require.NoError(t, err)
		require.NotEmpty(t, page.Next)
		many := make([]string, 1001)
		for i := range many {
			many[i] = "k"
		}
		for name, filter := range map[string]ops.Filter{
			"state": {States: []ops.State{"poison"}}, "keys": {HandlerKeys: many}, "empty key": {HandlerKeys: []string{""}},
			"key": {HandlerKeys: []string{"a\x00"}},
			"ID":  {MessageID: "a\x00"}, "type": {Type: "\xff"}, "text": {ErrorText: "\x00"},
			"fingerprint": {Fingerprint: "\x00"},
			"ages":        {From: inboxtest.Noon, To: inboxtest.Noon},
			"year":        {From: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		} {
			_, err := r.ops.List(ctx, filter, "", 1)
			require.ErrorIs(t, err, ops.ErrBadInput, name)
			_, err = r.ops.Count(ctx, filter)
			require.ErrorIs(t, err, ops.ErrBadInput, name)
			_, err = r.ops.Failures(ctx, filter)
			require.ErrorIs(t, err, ops.ErrBadInput, name)
		}
		for _, limit := range []int{-1, 1001} {
			_, err := r.ops.List(ctx, ops.Filter{}, "", limit)
			require.ErrorIs(t, err, ops.ErrBadInput)
			_, err = r.ops.ListRejected(ctx, ops.RejectedFilter{}, "", limit)
			require.ErrorIs(t, err, ops.ErrBadInput)
		}
		for _, cursor := range []ops.Cursor{"x", "e30", ops.Cursor(strings.Repeat("e", 5000)), page.Next + "e"} {
			_, err := r.ops.List(ctx, ops.Filter{}, cursor, 1)
			require.ErrorIs(t, err, ops.ErrBadInput, cursor)
			_, err = r.ops.Audit(ctx, ops.AuditFilter{}, cursor, 1)
			require.ErrorIs(t, err, ops.ErrBadInput, cursor)
		}
		for _, filter := range []ops.Filter{{Type: "t"}, {States: []ops.State{ops.StatePoisoned}}, {MessageID: "1"}} {
			_, err := r.ops.List(ctx, filter, page.Next, 1)
			require.ErrorIs(t, err, ops.ErrBadInput, "the cursor of another list")
		}
		_, err = r.ops.ListGaps(ctx, page.Next, 1)
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.Failures(ctx, ops.Filter{States: []ops.State{ops.StateCompleted}})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.Message(ctx, ada, ops.MessageRef{ID: ""})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.Rejected(ctx, ada, "x")
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.RetryMatching(ctx, ada, ops.Filter{}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput, "everything")
		_, err = r.ops.RetryMatching(ctx, ada, ops.Filter{Type: "t", States: []ops.State{ops.StatePending}}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.DiscardMatching(ctx, ada, ops.Filter{Type: "t", States: []ops.State{ops.StateProcessing}}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.DiscardMatching(ctx, ada, ops.Filter{Type: "t"}, ops.Bulk{ChunkSize: 1001})
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.ErrorIs(t, r.ops.Delete(ctx, ada, ops.MessageRef{ID: "1"}, "2"), ops.ErrBadInput)
		require.ErrorIs(t, r.ops.Delete(ctx, ada, ops.MessageRef{ID: "1"}, ""), ops.ErrBadInput)
		require.ErrorIs(t, r.ops.Delete(ctx, ada, ops.MessageRef{ID: "none"}, "none"), ops.ErrNotFound)
		require.Empty(t, r.audit())
	})
}

func TestOpsRefusesInvalidSettings(t *testing.T) {
	_, err := ops.New(nil)
	require.ErrorContains(t, err, "no database")
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		_, err := ops.New(d.DB, func(o *ops.Options) { o.StatementTimeout = 0 })
		require.ErrorContains(t, err, "option StatementTimeout = 0s")
		tx := d.DB.Begin()
		_, err = ops.New(tx)
		require.ErrorContains(t, err, "inside a transaction")
		require.NoError(t, tx.Rollback().Error)
		o, err := ops.New(d.DB)
		require.NoError(t, err)
		require.ErrorContains(t, o.CheckSchema(t.Context()), "set option Migrate")
		_, err = o.Overview(t.Context())
		require.Error(t, err)
	})
}

// TestListOfMessagesWithManyHandlersIsComplete has two hundred handlers of each message: more
// statuses than are read at once.
func TestListOfMessagesWithManyHandlersIsComplete(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const messages, handlers = 55, 200 // the second page too begins with more than are read at once
		ids := make([]string, messages)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		r.accept(ids...)
		inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_handler_statuses`)
		inboxtest.Exec(t, r.d.DB, `INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, sequence, created_at, completed_at, outcome)
			SELECT `+r.statusID("m.number", "h.n")+`, m.number, m.id, 'h' || h.n, m.number * 1000 + h.n, m.received_at, m.received_at, 'processed'
			FROM inbox_messages m, `+numbers(handlers)+` h`)
		all := r.list(ops.Filter{}, ops.MaxLimit)
		require.Len(t, all, messages*handlers)
		slices.Sort(all)
		require.Len(t, slices.Compact(all), messages*handlers, "each once")
	})
}

func TestUnmatchableFilterIsBadInput(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for name, filter := range map[string]ops.Filter{
			"error text": {ErrorText: strings.Repeat("x", 2001)}, "type": {Type: strings.Repeat("x", 256)},
			"fingerprint": {Fingerprint: strings.Repeat("x", 101)},
			"message ID":  {MessageID: strings.Repeat("x", 201)},
			"handler key": {HandlerKeys: []string{strings.Repeat("x", 201)}},
		} {
			_, err := r.ops.List(t.Context(), filter, "", 0)
			require.ErrorIs(t, err, ops.ErrBadInput, name)
			require.ErrorContains(t, err, name)
			_, err = r.ops.RetryMatching(t.Context(), ada, filter, ops.Bulk{})
			require.ErrorIs(t, err, ops.ErrBadInput, "its audit rows would hold it: "+name)
		}
	})
}

// TestSearchOverManyHandlersIsCompleteAndInOrder proves contract 11.1: a search over many handlers,
// of which some have thousands of statuses and most a few, gives each status that matches once and
// in order, on however many pages.
func TestSearchOverManyHandlersIsCompleteAndInOrder(t *testing.T) {
	testenv.Long(t)
	onEach(t, func(t *testing.T, r *rig) {
		r.acceptOf("alone", "0")
		r.copies("alone", 12_000)
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true, error_count = 1,
			handler_key = CASE WHEN message_number % 3 = 0 THEN 'dense' ELSE 'h' || (message_number * message_number % 37) END,
			last_error = CASE WHEN message_number % 499 = 0 THEN 'needle' ELSE 'hay' END,
			fingerprint = CASE WHEN message_number % 499 = 0 THEN 'n' ELSE 'h' END`)
		var expected []string
		require.NoError(t, r.d.DB.Raw(`SELECT handler_key || '/' || message_id FROM inbox_handler_statuses
			WHERE last_error = 'needle' ORDER BY id DESC`).Scan(&expected).Error)
		require.Greater(t, len(expected), 20)
		hook, err := ops.New(r.d.DB, patient, redactBy(func(v redact.Value) []byte {
			return bytes.ReplaceAll(v.Bytes, []byte("needle"), []byte("NEEDLE!"))
		}))
		require.NoError(t, err)
		for text, o := range map[string]*ops.Ops{"NEEDLE": r.ops, "needle!": hook} {
			var listed []string
			pages := 0
			for cursor := ops.Cursor(""); ; pages++ {
				page, err := o.List(t.Context(), ops.Filter{ErrorText: text, States: []ops.State{ops.StatePoisoned}}, cursor, 7)
				require.NoError(t, err)
				require.LessOrEqual(t, page.Scanned, lookLimit)
				for _, s := range page.Items {
					listed = append(listed, s.HandlerKey+"/"+s.MessageID)
				}
				if cursor = page.Next; cursor == "" {
					break
				}
			}
			require.Equal(t, expected, listed, text)
			require.Less(t, pages, 20)
		}
		require.Equal(t, expected, r.list(ops.Filter{Fingerprint: "n"}, 5))
		all := r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}}, ops.MaxLimit)
		require.Len(t, all, 12_001)
		slices.Sort(all)
		require.Len(t, slices.Compact(all), 12_001, "each once")
	})
}

// TestTextsAreFoundInEveryLocale proves that a search does not depend on the locale: in Turkish the
// lower case of I is ı.
func TestTextsAreFoundInEveryLocale(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		if r.d.Dialect == "postgres" {
			inboxtest.Exec(t, r.d.DB,
				`ALTER TABLE inbox_handler_statuses ALTER last_error TYPE varchar(2000) COLLATE "tr-x-icu"`)
			inboxtest.Exec(t, r.d.DB, `ALTER TABLE inbox_rejected_messages ALTER reason TYPE varchar(2000) COLLATE "tr-x-icu"`)
		}
		r.poison("mail", "ORDER IS GONE", "1")
		r.accept("1")
		r.process()
		r.reject(1, "RECORD IS BAD")
		require.Equal(t, []string{"mail/1"}, r.list(ops.Filter{ErrorText: "order IS"}, 10))
		rejected, err := r.ops.ListRejected(t.Context(), ops.RejectedFilter{Reason: "record IS"}, "", 10)
		require.NoError(t, err)
		require.Len(t, rejected.Items, 1)
	})
}
