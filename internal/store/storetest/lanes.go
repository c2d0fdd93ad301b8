package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ordered is a message whose handlers share its ordering key, each with lanes
// of its own.
func ordered(id, orderingKey string, handlers ...string) store.NewMessage {
	m := message(id, handlers...)
	m.OrderingKey = []byte(orderingKey)
	for i, key := range handlers {
		m.Handlers[i].Lane = store.LaneOf(key, m.OrderingKey)
	}
	return m
}

func ruleOf(keys ...string) store.LaneRule {
	var rule store.LaneRule
	for _, key := range keys {
		rule.Handlers = append(rule.Handlers, store.LaneHandler(key))
	}
	return rule
}

func skipping(rule store.LaneRule) store.LaneRule {
	rule.SkipPoisoned = true
	return rule
}

// claimUnder claims keys of one handler under its rule.
func (s *suite) claimUnder(rule store.LaneRule, now time.Time, limit int, keys ...string) store.Claimed {
	s.Helper()
	request := store.ClaimRequest{Now: now}
	for _, key := range keys {
		request.Limits = append(request.Limits, store.KeyLimit{HandlerKey: key, Limit: limit, Lanes: &rule})
	}
	got, err := s.store.Claim(s.ctx, request)
	require.NoError(s, err)
	require.NoError(s, got.Unlooked)
	return got
}

// heads claims "mail" under its own rule.
func (s *suite) heads(now time.Time, limit int) []store.Claim {
	s.Helper()
	return s.claimUnder(ruleOf("mail"), now, limit, "mail").Claims
}

// advance looks after the lanes of claims that have ended, at noon.
func (s *suite) advance(rule store.LaneRule, claims ...store.Claim) []string {
	s.Helper()
	return s.advanceAt(noon, rule, claims...)
}

func (s *suite) advanceAt(now time.Time, rule store.LaneRule, claims ...store.Claim) []string {
	s.Helper()
	var turns []store.LaneTurn
	for _, claim := range claims {
		turns = append(turns, rule.Turn(*claim.Lane))
	}
	keys, err := s.store.AdvanceLanes(s.ctx, turns, now)
	require.NoError(s, err)
	return keys
}

// waiting lists the messages whose "mail" is marked as waiting.
func (s *suite) waiting() []string {
	s.Helper()
	var found []string
	for _, row := range s.statuses() {
		if row.IsWaiting {
			found = append(found, row.MessageID)
		}
	}
	return found
}

func (s *suite) poison(claim store.Claim) {
	s.Helper()
	poisoned := settlement(claim)
	poisoned.Poisoned = true
	s.settle(poisoned)
}

// retry makes a poisoned status pending, as an operator does.
func (s *suite) retry(messageID, handlerKey string) {
	s.Helper()
	changed := s.db.WithContext(s.ctx).Exec(`UPDATE inbox_handler_statuses SET is_poisoned = false, error_count = 0, version = version + 1
		WHERE message_id = ? AND handler_key = ? AND is_poisoned`, messageID, handlerKey)
	require.NoError(s, changed.Error)
	require.EqualValues(s, 1, changed.RowsAffected)
}

var laneTests = []test{
	{"accepting writes the lane, and nothing else of it", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), message("m2", "mail"), ordered("m3", "", "mail"))
		lane := store.LaneOf("mail", []byte("k"))
		row := s.status("m1", "mail")
		require.Equal(s, *lane, store.Lane{Handler: *row.LaneHandler, Key: *row.LaneKey})
		require.False(s, row.IsWaiting)
		require.False(s, row.HoldsLane)
		require.Nil(s, s.status("m2", "mail").LaneKey)
		require.Nil(s, store.LaneOf("mail", nil))
		require.Equal(s, *store.LaneOf("mail", []byte{}), store.Lane{Handler: lane.Handler, Key: *s.status("m3", "mail").LaneKey}, "an empty key is a key")
	}},
	{"a status added by a redelivery has its lane", func(s *suite) {
		s.accept(ordered("m1", "k", "stock"))
		s.accept(ordered("m1", "k", "stock", "mail"), ordered("m2", "k", "mail"))
		require.Equal(s, []string{"m1/mail"}, claimed(s.heads(noon, 10)))
	}},
	{"only the first of each lane is claimed, and its lane comes with it", func(s *suite) {
		s.accept(ordered("a1", "a", "mail"), ordered("b1", "b", "mail"), ordered("a2", "a", "mail"), message("free1", "mail"), ordered("b2", "b", "mail"), message("free2", "mail"))
		claims := s.heads(noon, 10)
		require.Equal(s, []string{"a1/mail", "b1/mail", "free1/mail", "free2/mail"}, claimed(claims))
		require.Equal(s, store.LaneOf("mail", []byte("a")), claims[0].Lane)
		require.Nil(s, claims[2].Lane)
		require.True(s, s.status("a1", "mail").HoldsLane)
		require.False(s, s.status("free1", "mail").HoldsLane)
		require.Empty(s, s.heads(noon, 10))

		s.complete(noon, claims[0])
		require.False(s, s.status("a1", "mail").HoldsLane)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claims[0]))
		require.Equal(s, []string{"a2/mail"}, claimed(s.heads(noon, 10)))
	}},
	{"handlers have lanes of their own", func(s *suite) {
		s.accept(ordered("m1", "k", "mail", "stock"), ordered("m2", "k", "mail", "stock"))
		mail, stock := ruleOf("mail"), ruleOf("stock")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{
			{HandlerKey: "mail", Limit: 5, Lanes: &mail}, {HandlerKey: "stock", Limit: 5, Lanes: &stock},
		}})
		require.NoError(s, err)
		require.Equal(s, []string{"m1/mail", "m1/stock"}, claimed(got.Claims))
	}},
	{"a handler that is not ordered claims as if there were no lanes", func(s *suite) {
		s.accept(ordered("m1", "k", "mail", "stock"), ordered("m2", "k", "mail", "stock"))
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{
			{HandlerKey: "stock", Limit: 5}, {HandlerKey: "mail", Limit: 5, Lanes: &rule},
		}})
		require.NoError(s, err)
		require.Equal(s, []string{"m1/mail", "m1/stock", "m2/stock"}, claimed(got.Claims))
		require.False(s, s.status("m1", "stock").HoldsLane)
		s.complete(noon, got.Claims...)
	}},
	{"the order holds over retries, snoozes and releases", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"), ordered("m3", "k", "mail"))
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
		for _, id := range []string{"m1", "m2", "m3"} {
			s.accept(ordered(id, "k", "mail"))
		}
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
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: row.Version, Outcome: models.OutcomeDiscarded}}, noon)
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim))
		require.Equal(s, []string{"m2/mail"}, claimed(s.heads(noon, 1)))
	}},
	{"a poisoned row is skipped where the rule says so, and retried when the lane is free", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		for _, id := range []string{"m1", "m2", "m3", "m4"} {
			s.accept(ordered(id, "k", "mail"))
		}
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
	{"what a claim passes over is marked if it is more than it may claim", func(s *suite) {
		for i := range 6 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "mail"))
		}
		got := s.claimUnder(ruleOf("mail"), noon, 5, "mail")
		require.Equal(s, []string{"m0/mail"}, claimed(got.Claims))
		require.Empty(s, s.waiting(), "five may be passed over by a claim of five")
		require.Empty(s, got.Behind)
		s.accept(ordered("m6", "k", "mail"), message("free", "mail"))
		before := s.status("m5", "mail").Version
		got = s.claimUnder(ruleOf("mail"), noon, 5, "mail")
		require.Equal(s, []string{"free/mail"}, claimed(got.Claims))
		require.Equal(s, []string{"m1", "m2", "m3", "m4", "m5", "m6"}, s.waiting())
		require.Equal(s, []string{"mail"}, got.Behind)
		require.Equal(s, before+1, s.status("m5", "mail").Version)
		require.Empty(s, s.claimUnder(ruleOf("mail"), noon, 5, "mail").Behind)
	}},
	{"what a full claim did not come to is not marked", func(s *suite) {
		for i := range 4 {
			s.accept(ordered(fmt.Sprintf("a%d", i), "a", "mail"))
		}
		s.accept(ordered("b0", "b", "mail"), ordered("b1", "b", "mail"))
		require.Equal(s, []string{"a0/mail", "b0/mail"}, claimed(s.heads(noon, 2)))
		require.Equal(s, []string{"a1", "a2", "a3"}, s.waiting())
	}},
	{"what became due before the last row of a full claim is marked", func(s *suite) {
		for i := range 4 {
			s.acceptAt(noon.Add(-time.Minute), ordered(fmt.Sprintf("a%d", i), "a", "mail"))
		}
		s.accept(ordered("b0", "b", "mail"), ordered("b1", "b", "mail"))
		require.Equal(s, []string{"a0/mail", "b0/mail"}, claimed(s.heads(noon, 2)))
		require.Equal(s, []string{"a1", "a2", "a3"}, s.waiting())
	}},
	{"AdvanceLanes lets nobody go before his turn", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"), ordered("m3", "k", "mail"))
		claim := s.heads(noon, 1)[0]
		require.Empty(s, s.heads(noon, 1))
		require.Empty(s, s.advance(ruleOf("mail"), claim), "m1 is running")
		next := noon.Add(time.Minute)
		failed := settlement(claim)
		failed.NextAttemptAt = &next
		s.settle(failed)
		require.Empty(s, s.advance(ruleOf("mail"), claim), "m1 is to be tried again")
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		claim = s.heads(next, 1)[0]
		s.complete(next, claim)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim))
		require.Equal(s, []string{"m3"}, s.waiting())
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), claim), "twice is fine")
		require.Empty(s, s.advance(ruleOf("mail")))
	}},
	{"AdvanceLanes does not let a row go while another one of its lane is claimed", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		for _, id := range []string{"m1", "m2", "m3"} {
			s.accept(ordered(id, "k", "mail"))
		}
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
	{"AdvanceLanes tells of a row that is due again, as soon as it is", func(s *suite) {
		rule := skipping(ruleOf("mail"))
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"))
		first := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		s.poison(first)
		second := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		again := noon.Add(time.Minute)
		failed := settlement(second)
		failed.NextAttemptAt = &again
		s.settle(failed)
		// While m2 waits for its time, m1 runs again. A claim passes over m2,
		// due by then, and need not mark it.
		s.retry("m1", "mail")
		claims := s.claimUnder(rule, noon, 1, "mail").Claims
		require.Equal(s, []string{"m1/mail"}, claimed(claims))
		require.Empty(s, s.claimUnder(rule, again, 1, "mail").Claims)
		require.Empty(s, s.waiting())
		s.complete(again, claims...)
		require.Empty(s, s.advanceAt(again.Add(-time.Microsecond), rule, claims...), "its time has not come")
		_, found, err := s.store.NextDue(s.ctx, []string{"mail"}, again)
		require.NoError(s, err)
		require.False(s, found, "nor is it to come")
		require.Equal(s, []string{"mail"}, s.advanceAt(again, rule, claims...))
		require.Equal(s, []string{"m2/mail"}, claimed(s.claimUnder(rule, again, 1, "mail").Claims))
	}},
	{"CheckLanes lets go what a process that died has left, page by page", func(s *suite) {
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
		s.complete(noon, claims[:lanes-1]...) // and dies before it looks
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
	{"ReleaseWaiting lets the rows of a handler go that is not ordered any more", func(s *suite) {
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
	{"a renamed handler's lanes are the same under all its names", func(s *suite) {
		// By the program from before a rename from "old" to "mail", by the one
		// after it, and by one that has dropped the legacy key too early.
		before, after, dropped := ruleOf("old"), ruleOf("mail", "old"), ruleOf("mail")
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "old", "old"), lane("m4", "mail", "mail"), lane("m5", "mail", "old"))
		first := s.claimUnder(after, noon, 5, "mail", "old").Claims
		require.Equal(s, []string{"m1/old"}, claimed(first))
		s.complete(noon, first...)
		s.advance(after, first...)
		require.Empty(s, s.claimUnder(before, noon, 5, "old").Claims, "m2 is before m3, under a key the old program does not know")
		for _, id := range []string{"m2/mail", "m3/old", "m4/mail", "m5/mail"} {
			claims := s.claimUnder(after, noon, 5, "mail", "old").Claims
			require.Equal(s, []string{id}, claimed(claims))
			s.complete(noon, claims...)
			require.NotEmpty(s, append(s.advance(after, claims...), id))
		}
		s.accept(lane("n1", "mail", "old"), lane("n2", "mail", "old"), lane("n3", "mail", "old"))
		for _, id := range []string{"n1", "n2", "n3"} {
			claims := s.claimUnder(dropped, noon, 5, "mail").Claims
			require.Equal(s, []string{id + "/mail"}, claimed(claims), "a row's own name counts")
			s.complete(noon, claims...)
			s.advance(dropped, claims...)
		}
	}},
	{"lanes of a name that their handler has dropped are told", func(s *suite) {
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		stray := func(rules map[string]store.LaneRule) []string {
			s.Helper()
			keys, err := s.store.StrayLanes(s.ctx, rules)
			require.NoError(s, err)
			return keys
		}
		dropped := map[string]store.LaneRule{"mail": ruleOf("mail"), "stock": ruleOf("stock")}
		require.Empty(s, stray(dropped))
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "mail", "mail"), ordered("m4", "k", "stock"), message("m5", "mail"), ordered("m6", "k", "foreign"))
		require.Equal(s, []string{"mail"}, stray(dropped))
		require.Empty(s, stray(map[string]store.LaneRule{"mail": ruleOf("mail", "old"), "old": ruleOf("mail", "old")}))
		require.Empty(s, stray(map[string]store.LaneRule{"stock": ruleOf("stock")}), "mail is not asked for")
		require.Empty(s, stray(nil))

		rule := ruleOf("mail", "old")
		s.complete(noon, s.claimUnder(rule, noon, 1, "old").Claims...)
		s.poison(s.claimUnder(rule, noon, 1, "mail").Claims[0])
		require.Equal(s, []string{"mail"}, stray(dropped), "poisoned, m2 parks a lane that m3 is not in")
		row := s.status("m2", "mail")
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: row.Version, Outcome: models.OutcomeDiscarded}}, noon)
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
		require.Empty(s, stray(dropped), "what has ended is in no lane")
	}},
	{"waiting rows of an unknown handler key are found, and poisoning ends their waiting", func(s *suite) {
		for i := range 4 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "gone"))
		}
		s.poison(s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims[0])
		require.Empty(s, s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims)
		require.Len(s, s.waiting(), 3)
		keys, err := s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Equal(s, []string{"gone"}, keys)
		refs, err := s.store.PendingOf(s.ctx, "gone", 2)
		require.NoError(s, err)
		require.Len(s, refs, 2)
		refs, err = s.store.PendingOf(s.ctx, "gone", 10)
		require.NoError(s, err)
		require.Len(s, refs, 3)
		require.Equal(s, store.LaneOf("gone", []byte("k")), refs[0].Lane)
		for _, ref := range refs {
			s.poison(store.Claim{Ref: ref})
		}
		require.Empty(s, s.waiting())
		keys, err = s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Empty(s, keys)
	}},
	{"a superseded or discarded row waits no more", func(s *suite) {
		for i := range 3 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "mail"))
		}
		s.heads(noon, 1)
		require.Empty(s, s.heads(noon, 1))
		row := s.status("m1", "mail")
		require.True(s, row.IsWaiting)
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: row.Version, Outcome: models.OutcomeSuperseded}}, noon)
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
		require.Equal(s, []string{"m2"}, s.waiting())
	}},
	{"every way a claim ends gives the lane back", func(s *suite) {
		for name, end := range map[string]func(store.Claim){
			"complete": func(c store.Claim) { s.complete(noon, c) },
			"complete a moved row": func(c store.Claim) {
				c.Locator = ""
				s.complete(noon, c)
			},
			"complete unlocked": func(c store.Claim) {
				applied, err := s.store.CompleteUnlocked(s.ctx, []store.Completion{completion(c)}, noon)
				require.NoError(s, err)
				require.Equal(s, []bool{true}, applied)
			},
			"complete in a transaction": func(c store.Claim) {
				tx := s.begin()
				applied, err := s.store.CompleteTx(s.ctx, tx, completion(c), noon)
				require.NoError(s, err)
				require.True(s, applied)
				require.NoError(s, tx.Commit().Error)
			},
			"settle": func(c store.Claim) { s.settle(settlement(c)) },
			"settle unlocked": func(c store.Claim) {
				applied, err := s.store.SettleUnlocked(s.ctx, []store.Settlement{settlement(c)})
				require.NoError(s, err)
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
	{"sweeps and siblings tell the lane", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k2", "mail"))
		worker := s.worker("mail")
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(s, err)
		require.Len(s, got.Claims, 1)
		s.heads(noon, 1)
		refs, err := s.store.ClaimsOf(s.ctx, worker, 5)
		require.NoError(s, err)
		require.Equal(s, []store.Ref{got.Claims[0].Ref}, refs)
		refs, err = s.store.StuckClaims(s.ctx, noon, 5)
		require.NoError(s, err)
		require.Equal(s, store.LaneOf("mail", []byte("k2")), refs[0].Lane)
		siblings, err := s.store.Siblings(s.ctx, []string{"m1"}, []string{"mail"})
		require.NoError(s, err)
		require.Equal(s, store.LaneOf("mail", []byte("k")), siblings[0].Lane)
	}},
	{"an unknown or released worker neither claims from lanes nor marks", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"), ordered("m3", "k", "mail"))
		worker := s.worker("mail")
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(s, err)
		require.Equal(s, store.Claimed{}, got)
		require.Empty(s, s.waiting())
	}},
}
