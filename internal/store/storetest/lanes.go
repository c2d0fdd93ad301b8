package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
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

// laneTests cover what a lane is, and who gets its first row.
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
	{"sweeps and siblings tell the lane", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k2", "mail"))
		worker := s.worker("mail")
		rule := ruleOf("mail")
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(s, err)
		require.Len(s, got.Claims, 1)
		s.heads(noon, 1)
		refs, err := s.store.ClaimsOf(s.ctx, worker, 5)
		require.NoError(s, err)
		require.Equal(s, []store.Ref{got.Claims[0].Ref}, refs)
		refs, err = s.store.StuckClaims(s.ctx, noon, 5)
		require.NoError(s, err)
		require.Equal(s, store.LaneOf("mail", []byte("k2")), refs[0].Lane)
		siblings, err := s.store.Siblings(s.ctx, s.numbers("m1"), []string{"mail"})
		require.NoError(s, err)
		require.Equal(s, store.LaneOf("mail", []byte("k")), siblings[0].Lane)
	}},
	{"an unknown or released worker neither claims from lanes nor marks", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"), ordered("m3", "k", "mail"))
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
