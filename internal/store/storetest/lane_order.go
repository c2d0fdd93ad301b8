package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// laneOrderTests cover which row runs when, and what ends the claim of a lane.
var laneOrderTests = []test{
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
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: int64(row.Version),
			Outcome: models.OutcomeDiscarded}}, noon, store.AwaitLocked)
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
	{"a superseded or discarded row waits no more", func(s *suite) {
		for i := range 3 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "mail"))
		}
		s.heads(noon, 1)
		require.Empty(s, s.heads(noon, 1))
		row := s.status("m1", "mail")
		require.True(s, row.IsWaiting)
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: int64(row.Version),
			Outcome: models.OutcomeSuperseded}}, noon, store.AwaitLocked)
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
				applied, err := s.store.Complete(s.ctx, []store.Completion{completion(c)}, noon, store.SkipLocked)
				require.NoError(s, err)
				require.Equal(s, []bool{true}, applied)
			},
			"complete in a transaction": func(c store.Claim) {
				tx := s.begin()
				applied, err := completeTx(s, tx, completion(c))
				require.NoError(s, err)
				require.True(s, applied)
				require.NoError(s, tx.Commit().Error)
			},
			"settle": func(c store.Claim) { s.settle(settlement(c)) },
			"settle unlocked": func(c store.Claim) {
				applied, err := s.store.Settle(s.ctx, []store.Settlement{settlement(c)}, store.SkipLocked)
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
}
