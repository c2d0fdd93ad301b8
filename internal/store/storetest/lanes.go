package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ordered returns a message whose handlers share its ordering key, each with lanes of its own.
func ordered(id, orderingKey string, handlers ...string) store.NewMessage {
	m := message(id, handlers...)
	m.OrderingKey = []byte(orderingKey)
	for i, key := range handlers {
		m.Handlers[i].Lane = store.LaneOf(key, m.OrderingKey)
	}
	return m
}

// acceptLane accepts messages of one lane of "mail".
func (s *suite) acceptLane(ids ...string) {
	s.Helper()
	for _, id := range ids {
		s.accept(ordered(id, "k", "mail"))
	}
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
	require.NoError(s, got.LanesErr)
	return got
}

// heads claims "mail" under its own rule.
func (s *suite) heads(now time.Time, limit int) []store.Claim {
	s.Helper()
	return s.claimUnder(ruleOf("mail"), now, limit, "mail").Claims
}

// advance advances, at noon, the lanes of claims that have ended.
func (s *suite) advance(rule store.LaneRule, claims ...store.Claim) []string {
	s.Helper()
	return s.advanceAt(noon, rule, claims...)
}

func (s *suite) advanceAt(now time.Time, rule store.LaneRule, claims ...store.Claim) []string {
	s.Helper()
	var requests []store.LaneRequest
	for _, claim := range claims {
		requests = append(requests, rule.Request(*claim.Lane))
	}
	keys, err := s.store.AdvanceLanes(s.ctx, requests, now)
	require.NoError(s, err)
	return keys
}

// waiting returns the messages whose "mail" is marked as waiting.
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

// retry makes a poisoned status pending, as an operator does.
func (s *suite) retry(messageID, handlerKey string) {
	s.Helper()
	changed := s.db.WithContext(s.ctx).Exec(`UPDATE inbox_handler_statuses SET is_poisoned = false, error_count = 0, version = version + 1
		WHERE id = ? AND is_poisoned`, s.status(messageID, handlerKey).ID)
	require.NoError(s, changed.Error)
	require.EqualValues(s, 1, changed.RowsAffected)
}

// laneTests cover what a lane is, and who gets its first row.
var laneTests = []test{
	{"accepting stores the lane, neither held nor waiting", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), message("m2", "mail"), ordered("m3", "", "mail"))
		lane := store.LaneOf("mail", []byte("k"))
		row := s.status("m1", "mail")
		require.Equal(s, *lane, store.Lane{Handler: *row.LaneHandler, Key: *row.LaneKey})
		require.False(s, row.IsWaiting)
		require.False(s, row.HoldsLane)
		require.Nil(s, s.status("m2", "mail").LaneKey)
		require.Nil(s, store.LaneOf("mail", nil))
		require.Equal(s, *store.LaneOf("mail", []byte{}),
			store.Lane{Handler: lane.Handler, Key: *s.status("m3", "mail").LaneKey}, "an empty key is a key")
	}},
	{"a status added by a redelivery has its lane", func(s *suite) {
		s.accept(ordered("m1", "k", "stock"))
		s.accept(ordered("m1", "k", "stock", "mail"), ordered("m2", "k", "mail"))
		require.Equal(s, []string{"m1/mail"}, claimed(s.heads(noon, 10)))
	}},
	{"only the first of each lane is claimed, and its lane comes with it", func(s *suite) {
		s.accept(ordered("a1", "a", "mail"), ordered("b1", "b", "mail"), ordered("a2", "a", "mail"), message("free1", "mail"),
			ordered("b2", "b", "mail"), message("free2", "mail"))
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
	{"handlers have separate lanes", func(s *suite) {
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
	{"sweeps and Siblings return the lane", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k2", "mail"))
		worker := s.worker("mail")
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(s, err)
		require.Len(s, got.Claims, 1)
		s.heads(noon, 1)
		require.Equal(s, []store.Ref{got.Claims[0].Ref}, s.claimsOf(worker))
		require.Equal(s, store.LaneOf("mail", []byte("k2")), s.claimsOf("")[0].Lane)
		siblings, err := s.store.Siblings(s.ctx, s.numbers("m1"), []string{"mail"})
		require.NoError(s, err)
		require.Equal(s, store.LaneOf("mail", []byte("k")), siblings[0].Lane)
	}},
	{"an unknown or released worker neither claims from lanes nor marks", func(s *suite) {
		s.acceptLane("m1", "m2", "m3")
		worker := s.worker("mail")
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(s, err)
		require.Equal(s, store.Claimed{}, got)
		require.Empty(s, s.waiting())
	}},
}

// laneNameTests cover lanes of handlers that have, or had, another name.
var laneNameTests = []test{
	{"a renamed handler's lanes are the same under all its names", func(s *suite) {
		// The rules of the program before a rename from "old" to "mail", of the program after it,
		// and of one that has dropped the legacy key too early.
		before, after, dropped := ruleOf("old"), ruleOf("mail", "old"), ruleOf("mail")
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "old", "old"), lane("m4", "mail", "mail"),
			lane("m5", "mail", "old"))
		first := s.claimUnder(after, noon, 5, "mail", "old").Claims
		require.Equal(s, []string{"m1/old"}, claimed(first))
		s.complete(noon, first...)
		s.advance(after, first...)
		require.Empty(s, s.claimUnder(before, noon, 5, "old").Claims,
			"m2 is before m3, under a key the old program does not know")
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
			next := noon.Add(time.Minute)
			s.retryAt(claims[0], next)
			require.Empty(s, s.claimUnder(dropped, noon, 5, "mail").Claims, "also while its time has not come")
			claims = s.claimUnder(dropped, next, 5, "mail").Claims
			require.Equal(s, []string{id + "/mail"}, claimed(claims))
			s.complete(noon, claims...)
			s.advance(dropped, claims...)
		}
	}},
	{"lanes of a name that their handler has dropped are found", func(s *suite) {
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		stray := func(rules map[string]store.LaneRule) []string {
			s.Helper()
			keys, err := s.store.KeysWithSplitLanes(s.ctx, rules)
			require.NoError(s, err)
			return keys
		}
		dropped := map[string]store.LaneRule{"mail": ruleOf("mail"), "stock": ruleOf("stock")}
		require.Empty(s, stray(dropped))
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "mail", "mail"), ordered("m4", "k", "stock"),
			message("m5", "mail"), ordered("m6", "k", "foreign"))
		require.Equal(s, []string{"mail"}, stray(dropped))
		require.Empty(s, stray(map[string]store.LaneRule{"mail": ruleOf("mail", "old"), "old": ruleOf("mail", "old")}))
		require.Empty(s, stray(map[string]store.LaneRule{"stock": ruleOf("stock")}), "mail is not asked for")
		require.Empty(s, stray(nil))

		rule := ruleOf("mail", "old")
		s.complete(noon, s.claimUnder(rule, noon, 1, "old").Claims...)
		s.poison(s.claimUnder(rule, noon, 1, "mail").Claims[0])
		require.Equal(s, []string{"mail"}, stray(dropped), "poisoned, m2 parks a lane that m3 is not in")
		row := s.status("m2", "mail")
		s.end(row, models.OutcomeDiscarded, noon)
		require.Empty(s, stray(dropped), "what has ended is in no lane")
	}},
	{"the handler key of waiting rows is found", func(s *suite) {
		for i := range 4 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "gone"))
		}
		s.poison(s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims[0])
		require.Empty(s, s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims)
		require.Len(s, s.waiting(), 3)
		keys, err := s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Equal(s, []string{"gone"}, keys)
	}},
}
