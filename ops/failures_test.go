package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestEveryKindOfFailureIsInAGroup proves contract 11.2: in whatever way an attempt fails, its status
// is in a group from then on, also with results stored together, in transactions and after the last
// retry.
func TestEveryKindOfFailureIsInAGroup(t *testing.T) {
	type order struct{ Number int }
	fail := func(err error) func(context.Context, inboxtest.Bytes) error {
		return func(context.Context, inboxtest.Bytes) error { return err }
	}
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		no := errors.New("order 17 not found")
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inbox.Channel("c",
			inbox.On("t",
				inboxtest.Do("failed", fail(no)),
				inboxtest.Do("poisoned", fail(handler.Poison(no))),
				inboxtest.Do("later", fail(handler.RetryAfter(time.Hour, no))),
				inboxtest.Do("exhausted", fail(no), handler.MaxRetries(0)),
				inboxtest.Do("panicked", func(context.Context, inboxtest.Bytes) error { panic("order 17") }),
				inboxtest.Tx("transactional", func(context.Context, *gorm.DB, inboxtest.Bytes) error { return no },
					handler.TxGroup(2)),
				inbox.Func("undecodable", func(context.Context, handler.Message[order]) error { return nil }))))
		o, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Accept(t, ib, "1", "2")
		inboxtest.Process(t, ib)
		expected := map[string]string{}
		for _, s := range inboxtest.Statuses(t, ib) { // which compares fingerprints and errors
			require.NotNil(t, s.Fingerprint, s.HandlerKey)
			expected[s.HandlerKey] = *s.Fingerprint
		}
		require.Len(t, expected, 7)
		failures, err := o.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.False(t, failures.Capped)
		groups := map[string]string{}
		for _, g := range failures.Groups {
			groups[g.HandlerKey] = g.Fingerprint
			require.EqualValues(t, 2, g.Poisoned+g.Failing, g.HandlerKey)
			require.Equal(t, g.Fingerprint, g.Sample.Fingerprint)
			page, err := o.List(t.Context(), ops.Filter{Fingerprint: g.Fingerprint}, "", 10)
			require.NoError(t, err)
			require.Len(t, page.Items, 2, g.HandlerKey)
			count, err := o.Count(t.Context(), ops.Filter{Fingerprint: g.Fingerprint})
			require.NoError(t, err)
			require.Equal(t, ops.Count{N: 2}, count)
		}
		require.Equal(t, expected, groups)
	})
}

// TestGroupsAndListsAgree proves contract 11.2: groups count what their lists have, while messages
// fail otherwise than before, are retried, discarded and handled.
func TestGroupsAndListsAgree(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		texts := []string{"no such order 1", "customer 2 is locked", `dial "10.0.0.1"`}
		for i := range 30 {
			id := fmt.Sprintf("m%02d", i)
			r.poison("mail", texts[i%3], id)
			r.fail("ship", id, handler.RetryAfter(time.Minute, errors.New(texts[i%2])))
			r.accept(id)
		}
		agree := func() {
			t.Helper()
			failures, err := r.ops.Failures(t.Context(), ops.Filter{})
			require.NoError(t, err)
			listed := r.list(ops.Filter{States: []ops.State{ops.StatePoisoned, ops.StateFailing}}, 7)
			var grouped []string
			for _, g := range failures.Groups {
				for state, n := range map[ops.State]int64{ops.StatePoisoned: g.Poisoned, ops.StateFailing: g.Failing} {
					of := r.list(ops.Filter{Fingerprint: g.Fingerprint, States: []ops.State{state}}, 4)
					require.Len(t, of, int(n), "%s %s", g.Error, state)
					grouped = append(grouped, of...)
				}
			}
			slices.Sort(listed)
			slices.Sort(grouped)
			require.Equal(t, listed, grouped)
			require.Len(t, listed, failures.Scanned)
		}
		r.process()
		agree()
		require.NoError(t, r.ops.Discard(t.Context(), ada, r.ref("mail", "m00"), ""))
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "m01")))
		agree()
		for i := range 10 { // the next attempt ends in another way
			r.fail("ship", fmt.Sprintf("m%02d", i), nil)
			r.poison("ship", "address unknown", fmt.Sprintf("m%02d", 10+i))
		}
		r.poison("mail", "address unknown", "m01")
		r.clock.Advance(2 * time.Minute)
		r.process()
		agree()
		failures, err := r.ops.Failures(t.Context(), ops.Filter{HandlerKeys: []string{"ship"}})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 3)
	})
}

// TestPagesOfAGroupAreStableWhileItsStatusesChange proves contract 11.1: what is failing on one
// page is poisoned, retried or handled by the time of the next. In the list of its group it keeps
// its place, so it is there once at most, and what stays in the group is there exactly once.
func TestPagesOfAGroupAreStableWhileItsStatusesChange(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprintf("m%02d", i))
			r.fail("mail", ids[i], handler.RetryAfter(time.Minute, fmt.Errorf("no order %d", i)))
		}
		r.accept(ids...)
		r.process()
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 1)
		filter := ops.Filter{Fingerprint: failures.Groups[0].Fingerprint}
		seen := map[string]int{}
		for cursor, n := ops.Cursor(""), 0; ; n++ {
			page, err := r.ops.List(t.Context(), filter, cursor, 3)
			require.NoError(t, err)
			for _, s := range page.Items {
				seen[s.MessageID]++
			}
			if cursor = page.Next; cursor == "" {
				break
			}
			// Each fails again, every fifth is given up, and one is handled.
			for i, id := range ids {
				if i%5 == n%5 {
					r.fail("mail", id, handler.Poison(fmt.Errorf("no order %d", i)))
				}
			}
			r.fail("mail", ids[0], nil)
			r.clock.Advance(2 * time.Minute)
			r.process()
		}
		for id, times := range seen {
			require.Equal(t, 1, times, id)
		}
		for _, at := range r.list(filter, 100) {
			require.Equal(t, 1, seen[at[len("mail/"):]], at)
		}
	})
}

// TestFewFailuresAreSeenAmongThousands proves contract 11.2: a cause of a few failures is seen
// beside one of thousands, and every handler's are.
func TestFewFailuresAreSeenAmongThousands(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		alone := inboxtest.Message("0")
		alone.Type = "alone"
		r.poison("alone", "many", "0")
		r.poison("mail", "few", "1")
		r.poison("ship", "fewer", "1")
		_, err := r.ib.Accept(t.Context(), alone, inboxtest.Message("1"))
		require.NoError(t, err)
		r.process()
		r.copies("alone", 12_000)
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true, error_count = 1, last_error = 'many',
			fingerprint = (SELECT fingerprint FROM (SELECT fingerprint FROM inbox_handler_statuses WHERE message_id = '0') f)
			WHERE handler_key = 'alone'`)
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.True(t, failures.Capped)
		require.LessOrEqual(t, failures.Scanned, lookLimit)
		require.Len(t, failures.Groups, 3)
		require.EqualValues(t, lookLimit-2, failures.Groups[0].Poisoned)
		for _, g := range failures.Groups[1:] {
			require.EqualValues(t, 1, g.Poisoned, g.HandlerKey)
		}
	})
}

// TestRetriedStatusesDoNotHideThePoisonedOfTheirGroup proves contract 11.2: what was retried keeps
// its fingerprint. However much of a group that is, it hides nothing of what is poisoned, and a
// list of what is pending finds it.
func TestRetriedStatusesDoNotHideThePoisonedOfTheirGroup(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		alone := inboxtest.Message("0")
		alone.Type = "alone"
		r.poison("alone", "many", "0")
		_, err := r.ib.Accept(t.Context(), alone)
		require.NoError(t, err)
		r.process()
		name := *r.status("alone", "0").Fingerprint
		r.copies("alone", lookLimit+500)
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET last_error = 'many', requeued_count = 1, fingerprint = ?
			WHERE NOT is_poisoned`, name)

		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 1)
		require.Equal(t, [2]int64{1, 0}, [2]int64{failures.Groups[0].Poisoned, failures.Groups[0].Failing})
		require.Equal(t, 1, failures.Scanned)
		require.False(t, failures.Capped)
		for _, states := range [][]ops.State{nil, {ops.StatePoisoned}, {ops.StatePoisoned, ops.StateFailing}} {
			filter := ops.Filter{Fingerprint: name, States: states}
			count, err := r.ops.Count(t.Context(), filter)
			require.NoError(t, err)
			require.Equal(t, ops.Count{N: 1}, count, states)
			require.Equal(t, []string{"alone/0"}, r.list(filter, 10), states)
		}
		page, err := r.ops.List(t.Context(), ops.Filter{Fingerprint: name, States: []ops.State{ops.StatePending}}, "", 7)
		require.NoError(t, err)
		require.Len(t, page.Items, 7)
		page, err = r.ops.List(t.Context(), ops.Filter{Fingerprint: "other", States: []ops.State{ops.StatePending}}, "", 7)
		require.NoError(t, err)
		require.Empty(t, page.Items)
		require.True(t, page.Partial)
	})
}

// TestAgesAreComparedWithSubsecondPrecision proves that limits between two stored times lose nothing and
// count nothing too much, in every form that times have on SQLite.
func TestAgesAreComparedWithSubsecondPrecision(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		alone := func(id string) {
			m := inboxtest.Message(id)
			m.Type = "alone"
			r.poison("alone", "no", id)
			_, err := r.ib.Accept(t.Context(), m)
			require.NoError(t, err)
			r.clock.Advance(300 * time.Millisecond)
		}
		begin := r.clock.Now()
		alone("0")
		alone("1") // at .3
		alone("2") // at .6
		r.process()
		at := func(d time.Duration) time.Time { return begin.Add(d) }
		for name, each := range map[string]struct {
			from, to time.Time
			expected []string
		}{
			"from":              {at(300 * time.Millisecond), time.Time{}, []string{"1", "2"}},
			"from just behind":  {at(300*time.Millisecond + 1), time.Time{}, []string{"2"}},
			"from just before":  {at(300*time.Millisecond - 1), time.Time{}, []string{"1", "2"}},
			"to":                {time.Time{}, at(300 * time.Millisecond), []string{"0"}},
			"to just behind":    {time.Time{}, at(300*time.Millisecond + 1), []string{"0", "1"}},
			"to just before":    {time.Time{}, at(300*time.Millisecond - 1), []string{"0"}},
			"one":               {at(300 * time.Millisecond), at(300*time.Millisecond + 1), []string{"1"}},
			"none":              {at(300*time.Millisecond + 1), at(600 * time.Millisecond), nil},
			"the end of time":   {at(0), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), []string{"0", "1", "2"}},
			"the start of time": {time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Time{}, []string{"0", "1", "2"}},
		} {
			for _, states := range [][]ops.State{{ops.StatePoisoned}, {ops.StatePoisoned, ops.StateCompleted}} {
				listed := r.list(ops.Filter{States: states, From: each.from, To: each.to}, 10)
				slices.Sort(listed)
				expected := []string{}
				for _, id := range each.expected {
					expected = append(expected, "alone/"+id)
				}
				require.Equal(t, expected, listed, "%s %s", name, states)
			}
			failures, err := r.ops.Failures(t.Context(), ops.Filter{From: each.from, To: each.to})
			require.NoError(t, err)
			var counted int64
			for _, g := range failures.Groups {
				counted += g.Poisoned
			}
			require.EqualValues(t, len(each.expected), counted, name)
		}
		r.reject(1, "no")
		for to, expected := range map[time.Duration]int{-1: 0, 0: 0, 1: 1} {
			filter := ops.RejectedFilter{To: r.clock.Now().Add(to)}
			rejected, err := r.ops.ListRejected(t.Context(), filter, "", 10)
			require.NoError(t, err)
			require.Len(t, rejected.Items, expected, to)
		}
		if r.d.Dialect == "sqlite" { // as others write a time without a fraction
			inboxtest.Exec(t, r.d.DB, `UPDATE inbox_messages SET received_at = replace(received_at, '.000000', '')`)
			failures, err := r.ops.Failures(t.Context(), ops.Filter{From: begin})
			require.NoError(t, err)
			require.EqualValues(t, 3, failures.Groups[0].Poisoned)
		}
	})
}

// TestHandlersWithFewFailureGroupsLeaveRoomForOthers proves contract 11.2: what handlers of few groups
// leave over is for those of many.
func TestHandlersWithFewFailureGroupsLeaveRoomForOthers(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		alone := inboxtest.Message("0")
		alone.Type = "alone"
		r.poison("alone", "many", "0")
		_, err := r.ib.Accept(t.Context(), alone)
		require.NoError(t, err)
		r.process()
		r.copies("alone", 454)
		// Each of the first 400 has a handler of its own. The others make five groups, the last
		// with 50 statuses.
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true, error_count = 1, last_error = 'many',
			handler_key = CASE WHEN sequence % 10000 <= 400 THEN 'handler ' || (sequence % 10000) ELSE 'busy' END,
			fingerprint = CASE WHEN sequence % 10000 <= 400 THEN 'one' WHEN sequence % 10000 <= 404 THEN 'f' || (sequence % 10000)
				ELSE 'fz' END
			WHERE message_id <> '0'`)
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.False(t, failures.Capped)
		require.Equal(t, 455, failures.Scanned)
		require.Len(t, failures.Groups, 406)
		require.Equal(t, "busy", failures.Groups[0].HandlerKey)
		require.EqualValues(t, 50, failures.Groups[0].Poisoned)
		for _, g := range failures.Groups[1:] { // also of those that the same fingerprint was written to
			require.EqualValues(t, 1, g.Poisoned, g.HandlerKey)
		}
	})
}

// TestFailureGroupsBeyondTheLimitAreDividedAmongHandlers proves that the groups are divided among the handlers if there
// are more than are shown, and that no group is returned twice.
func TestFailureGroupsBeyondTheLimitAreDividedAmongHandlers(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		alone := inboxtest.Message("0")
		alone.Type = "alone"
		r.poison("alone", "many", "0")
		_, err := r.ib.Accept(t.Context(), alone)
		require.NoError(t, err)
		r.process()
		r.copies("alone", 1205)
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET is_poisoned = true, error_count = 1, last_error = 'many',
			handler_key = CASE WHEN sequence % 10000 <= 5 THEN 'few' ELSE 'many' END, fingerprint = 'f' || (sequence % 10000)
			WHERE message_id <> '0'`)
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.True(t, failures.Capped)
		require.Equal(t, 1000, failures.Scanned)
		of := map[string]map[string]bool{"few": {}, "many": {}, "alone": {}}
		for _, g := range failures.Groups {
			of[g.HandlerKey][g.Fingerprint] = true
		}
		require.Equal(t, [3]int{5, 994, 1}, [3]int{len(of["few"]), len(of["many"]), len(of["alone"])})
	})
}
