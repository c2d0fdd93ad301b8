package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

// backlog counts the work of these keys, without lanes.
func (s *suite) backlog(now time.Time, limit int, keys ...string) []store.Backlog {
	s.Helper()
	var limits []store.KeyLimit
	for _, key := range keys {
		limits = append(limits, store.KeyLimit{HandlerKey: key, Limit: limit})
	}
	return s.backlogOf(now, limits...)
}

func (s *suite) backlogOf(now time.Time, limits ...store.KeyLimit) []store.Backlog {
	s.Helper()
	backlogs, err := s.store.Backlog(s.ctx, limits, now)
	require.NoError(s, err)
	return backlogs
}

var backlogTests = []test{
	{"each key's statuses are counted by what they are", func(s *suite) {
		for i := range 8 {
			s.acceptAt(noon.Add(time.Duration(i)*time.Second), message(fmt.Sprint("m", i), "mail"))
		}
		s.accept(message("other", "stock"))
		at := noon.Add(time.Minute)
		claims := s.claim(at, 5, "mail")
		s.complete(at, claims[0])
		poisoned, later, again := settlement(claims[1]), settlement(claims[2]), settlement(claims[3])
		poisoned.Poisoned = true
		hour, second := at.Add(time.Hour), at.Add(time.Second)
		later.NextAttemptAt, again.NextAttemptAt = &hour, &second
		s.settle(poisoned, later, again)
		require.Equal(s, []store.Backlog{
			{HandlerKey: "mail", Due: 3, Processing: 1, Poisoned: 1, OldestDue: noon.Add(5 * time.Second)},
			{HandlerKey: "stock", Due: 1, OldestDue: noon},
			{HandlerKey: "idle"},
		}, s.backlog(at, 100, "mail", "stock", "idle"), "four were claimed, of which one is completed and two put off")
		require.Equal(s, 4, s.backlog(second, 100, "mail")[0].Due)
		require.Equal(s, 5, s.backlog(hour, 100, "mail")[0].Due)
		require.Empty(s, s.backlog(at, 100))
	}},
	{"nothing is counted beyond the limit", func(s *suite) {
		for i := range 9 {
			s.acceptAt(noon.Add(time.Duration(i)*time.Second), message(fmt.Sprint("m", i), "mail"))
		}
		at := noon.Add(time.Minute)
		s.claim(at, 2, "mail")
		require.Equal(s, []store.Backlog{{HandlerKey: "mail", Due: 3, Processing: 2, OldestDue: noon.Add(2 * time.Second),
			Capped: true}}, s.backlog(at, 5, "mail"))
		require.False(s, s.backlog(at, 10, "mail")[0].Capped)
	}},
	{"what waits behind others of its lane is not due", func(s *suite) {
		rule := ruleOf("mail")
		look := func(rule *store.LaneRule) store.Backlog {
			s.Helper()
			return s.backlogOf(noon, store.KeyLimit{HandlerKey: "mail", Limit: 100, Lanes: rule})[0]
		}
		s.accept(ordered("m1", "a", "mail"), ordered("m2", "a", "mail"), ordered("m3", "a", "mail"),
			ordered("m4", "b", "mail"), message("m5", "mail"))
		require.Equal(s, store.Backlog{HandlerKey: "mail", Due: 3, Waiting: 2, OldestDue: noon}, look(&rule))
		require.Equal(s, 5, look(nil).Due, "of a handler that is not ordered")

		head := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		require.Equal(s, "m1", head.MessageID)
		got := look(&rule)
		require.Equal(s, []int{2, 2, 1}, []int{got.Due, got.Waiting, got.Processing})

		s.poison(head)
		s.advance(rule, head)
		got = look(&rule)
		require.Equal(s, []int{2, 2, 0, 1}, []int{got.Due, got.Waiting, got.Processing, got.Poisoned}, "the lane is parked")
		skips := skipping(rule)
		got = look(&skips)
		require.Equal(s, []int{3, 1}, []int{got.Due, got.Waiting}, "unless its handler skips what is poisoned")
	}},
}
