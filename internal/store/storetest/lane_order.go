package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// laneOrderTests cover which row runs when, and what ends the claim of a lane.
var laneOrderTests = []test{
	{"the order holds over retries, snoozes and releases", func(s *suite) {
		s.acceptLane("m1", "m2", "m3")
		now := noon
		var ran []string
		for range 3 {
			for _, delay := range []time.Duration{time.Minute, 0, time.Hour} { // failed, released, snoozed
				claims := s.heads(now, 10)
				require.Len(s, claims, 1)
				ran = append(ran, claims[0].MessageID)
				back := settlement(claims[0])
				if delay > 0 {
					next := now.Add(delay)
					back.NextAttemptAt = &next
				}
				s.settle(back)
				require.False(s, s.status(claims[0].MessageID, "mail").HoldsLane)
				s.advance(ruleOf("mail"), claims...)
				if delay > 0 {
					require.Empty(s, s.heads(now, 10), "those behind wait for it")
					now = now.Add(delay)
				}
			}
			claims := s.heads(now, 10)
			ran = append(ran, claims[0].MessageID)
			s.complete(now, claims...)
			s.advance(ruleOf("mail"), claims...)
		}
		require.Equal(s, []string{"m1", "m1", "m1", "m1", "m2", "m2", "m2", "m2", "m3", "m3", "m3", "m3"}, ran)
	}},
	{"a poisoned row parks its lane until it is discarded or retried", func(s *suite) {
		s.acceptLane("m1", "m2", "m3")
		claim := s.heads(noon, 1)[0]
		s.poison(claim)
		require.Empty(s, s.advance(ruleOf("mail"), claim))
		require.Empty(s, s.heads(noon, 1))
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		s.retry("m1", "mail")
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim))
		claim = s.heads(noon, 1)[0]
		require.Equal(s, "m1", claim.MessageID)
		s.poison(claim)
		row := s.status("m1", "mail")
		s.end(row, models.OutcomeDiscarded, noon)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim))
		require.Equal(s, []string{"m2/mail"}, claimed(s.heads(noon, 1)))
	}},
	{"a poisoned row is skipped where the rule says so, and retried when the lane is free", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		s.acceptLane("m1", "m2", "m3", "m4")
		next := func() store.Claim {
			s.Helper()
			claims := s.claimUnder(rule, noon, 1, "mail").Claims
			require.Len(s, claims, 1)
			return claims[0]
		}
		first := next()
		require.Empty(s, s.claimUnder(rule, noon, 1, "mail").Claims)
		require.Equal(s, []string{"m2", "m3", "m4"}, s.waiting())
		s.poison(first)
		require.Equal(s, []string{"mail"}, s.advance(rule, first))
		second := next()
		require.Equal(s, "m2", second.MessageID)
		s.retry("m1", "mail")
		s.advance(rule, first)
		require.Empty(s, s.claimUnder(rule, noon, 5, "mail").Claims, "m2 is running")
		s.complete(noon, second)
		require.Equal(s, []string{"mail"}, s.advance(rule, second))
		retried := next()
		require.Equal(s, "m1", retried.MessageID)
		s.complete(noon, retried)
		s.advance(rule, retried)
		require.Equal(s, "m3", next().MessageID)
	}},
	{"a superseded row is no longer marked as waiting", func(s *suite) {
		s.acceptLane("m0", "m1", "m2")
		s.heads(noon, 1)
		require.Empty(s, s.heads(noon, 1))
		row := s.status("m1", "mail")
		require.True(s, row.IsWaiting)
		s.end(row, models.OutcomeSuperseded, noon)
		require.Equal(s, []string{"m2"}, s.waiting())
	}},
	{"every end of a claim releases its lane", func(s *suite) {
		for name, end := range map[string]func(store.Claim){
			"complete": func(c store.Claim) { s.complete(noon, c) },
			"complete unlocked": func(c store.Claim) {
				applied := s.tryComplete(store.SkipLocked, completion(c))
				require.Equal(s, []bool{true}, applied)
			},
			"complete in a transaction": func(c store.Claim) {
				tx := s.begin()
				require.True(s, s.completeTx(tx, c))
				require.NoError(s, tx.Commit().Error)
			},
			"settle": func(c store.Claim) { s.settle(settlement(c)) },
			"settle unlocked": func(c store.Claim) {
				applied := s.trySettle(store.SkipLocked, settlement(c))
				require.Equal(s, []bool{true}, applied)
			},
		} {
			s.accept(ordered(name, name, "mail"))
			claims := s.heads(noon, 1)
			require.Equal(s, []string{name + "/mail"}, claimed(claims))
			require.True(s, s.status(name, "mail").HoldsLane)
			end(claims[0])
			require.False(s, s.status(name, "mail").HoldsLane, name)
			s.complete(noon, s.heads(noon, 1)...)
		}
	}},
}

// laneWaitingTests cover which rows are marked as waiting, and what releases them.
var laneWaitingTests = []test{
	{"rows that a claim passes over are marked if they exceed its limit", func(s *suite) {
		s.acceptLane("m0", "m1", "m2", "m3", "m4", "m5")
		got := s.claimUnder(ruleOf("mail"), noon, 5, "mail")
		require.Equal(s, []string{"m0/mail"}, claimed(got.Claims))
		require.Empty(s, s.waiting(), "five may be passed over by a claim of five")
		require.Empty(s, got.More)
		s.accept(ordered("m6", "k", "mail"), message("free", "mail"))
		before := s.status("m5", "mail").Version
		got = s.claimUnder(ruleOf("mail"), noon, 5, "mail")
		require.Equal(s, []string{"free/mail"}, claimed(got.Claims))
		require.Equal(s, []string{"m1", "m2", "m3", "m4", "m5", "m6"}, s.waiting())
		require.Equal(s, []string{"mail"}, got.More)
		require.Equal(s, before+1, s.status("m5", "mail").Version)
		require.Empty(s, s.claimUnder(ruleOf("mail"), noon, 5, "mail").More)
	}},
	{"rows that a full claim did not reach are not marked", func(s *suite) {
		for i := range 4 {
			s.accept(ordered(fmt.Sprintf("a%d", i), "a", "mail"))
		}
		s.accept(ordered("b0", "b", "mail"), ordered("b1", "b", "mail"))
		require.Equal(s, []string{"a0/mail", "b0/mail"}, claimed(s.heads(noon, 2)))
		require.Equal(s, []string{"a1", "a2", "a3"}, s.waiting())
	}},
	{"rows due before the last row of a full claim are marked", func(s *suite) {
		for i := range 4 {
			s.acceptAt(noon.Add(-time.Minute), ordered(fmt.Sprintf("a%d", i), "a", "mail"))
		}
		s.accept(ordered("b0", "b", "mail"), ordered("b1", "b", "mail"))
		require.Equal(s, []string{"a0/mail", "b0/mail"}, claimed(s.heads(noon, 2)))
		require.Equal(s, []string{"a1", "a2", "a3"}, s.waiting())
	}},
	{"AdvanceLanes releases no row out of order", func(s *suite) {
		s.acceptLane("m1", "m2", "m3")
		claim := s.heads(noon, 1)[0]
		require.Empty(s, s.heads(noon, 1))
		require.Empty(s, s.advance(ruleOf("mail"), claim), "m1 is running")
		next := noon.Add(time.Minute)
		s.retryAt(claim, next)
		require.Empty(s, s.advance(ruleOf("mail"), claim), "m1 is to be tried again")
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		claim = s.heads(next, 1)[0]
		s.complete(next, claim)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim))
		require.Equal(s, []string{"m3"}, s.waiting())
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim), "twice is fine")
		require.Empty(s, s.advance(ruleOf("mail")))
	}},
	{"AdvanceLanes releases no row while another one of its lane is claimed", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		s.acceptLane("m1", "m2", "m3")
		first := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		s.poison(first)
		second := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		s.retry("m1", "mail")
		require.Empty(s, s.claimUnder(rule, noon, 1, "mail").Claims)
		require.Equal(s, []string{"m1", "m3"}, s.waiting())
		require.Empty(s, s.advance(rule, first))
		require.Equal(s, []string{"m1", "m3"}, s.waiting())
		s.settle(settlement(second))
		require.Equal(s, []string{"mail"}, s.advance(rule, second))
		require.Equal(s, []string{"m3"}, s.waiting())
		require.Equal(s, []string{"m1/mail"}, claimed(s.claimUnder(rule, noon, 5, "mail").Claims))
	}},
	{"AdvanceLanes reports a row as soon as it is due again", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		s.acceptLane("m1", "m2")
		first := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		s.poison(first)
		second := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		again := noon.Add(time.Minute)
		s.retryAt(second, again)
		// While m2 waits for its time, m1 runs again. m2 becomes due, and a claim passes over it
		// without having to mark it.
		s.retry("m1", "mail")
		claims := s.claimUnder(rule, noon, 1, "mail").Claims
		require.Equal(s, []string{"m1/mail"}, claimed(claims))
		require.Empty(s, s.claimUnder(rule, again, 1, "mail").Claims)
		require.Empty(s, s.waiting())
		s.complete(again, claims...)
		require.Empty(s, s.advanceAt(again.Add(-time.Microsecond), rule, claims...), "its time has not come")
		next, err := s.store.NextDue(s.ctx, []string{"mail"}, again)
		require.NoError(s, err)
		require.Zero(s, next, "nor is it to come")
		require.Equal(s, []string{"mail"}, s.advanceAt(again, rule, claims...))
		require.Equal(s, []string{"m2/mail"}, claimed(s.claimUnder(rule, again, 1, "mail").Claims))
	}},
	{"CheckLanes releases the rows that a dead process left, page by page", func(s *suite) {
		const lanes = 7
		rule := ruleOf("mail", "never")
		for round := range 3 {
			var batch []store.NewMessage
			for lane := range lanes {
				batch = append(batch, ordered(fmt.Sprintf("m%d-%d", lane, round), fmt.Sprint(lane), "mail"))
			}
			s.accept(batch...)
		}
		s.accept(ordered("x1", "x", "other"), ordered("x2", "x", "other"), ordered("x3", "x", "other"))
		require.Len(s, s.claimUnder(ruleOf("other"), noon, 1, "other").Claims, 1)
		require.Empty(s, s.claimUnder(ruleOf("other"), noon, 1, "other").Claims)
		claims := s.claimUnder(rule, noon, lanes, "mail").Claims
		require.Len(s, claims, lanes)
		s.claimUnder(rule, noon, lanes, "mail")
		s.complete(noon, claims[:lanes-1]...) // and dies before it advances the lanes
		require.Empty(s, s.claimUnder(rule, noon, lanes, "mail").Claims)
		var after *store.Lane
		pages, woken := 0, 0
		for {
			next, keys, err := s.store.CheckLanes(s.ctx, rule, after, 3, noon)
			require.NoError(s, err)
			pages++
			if len(keys) > 0 {
				woken++
				require.Equal(s, []string{"mail"}, keys)
			}
			if next == nil {
				break
			}
			after = next
		}
		require.Equal(s, 3, pages)
		require.GreaterOrEqual(s, woken, 2)
		require.Len(s, s.claimUnder(rule, noon, lanes, "mail").Claims, lanes-1)
		names, err := s.store.WaitingLaneHandlers(s.ctx)
		require.NoError(s, err)
		expected := []int64{store.LaneHandler("mail"), store.LaneHandler("other")}
		slices.Sort(expected)
		slices.Sort(names)
		require.Equal(s, expected, names)
	}},
	{"ReleaseWaiting releases the rows of a handler that is no longer ordered", func(s *suite) {
		for i := range 5 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "mail", "other"))
		}
		for range 2 {
			s.heads(noon, 1)
			s.claimUnder(ruleOf("other"), noon, 1, "other")
		}
		require.Empty(s, s.claim(noon, 10, "mail"))
		var total int64
		for {
			released, err := s.store.ReleaseWaiting(s.ctx, []string{"mail", "unknown"}, 3)
			require.NoError(s, err)
			require.LessOrEqual(s, released, int64(3))
			if released == 0 {
				break
			}
			total += released
		}
		require.EqualValues(s, 4, total)
		require.Len(s, s.claim(noon, 10, "mail"), 4)
		require.Len(s, s.waiting(), 4, "the other handler's")
	}},
}
