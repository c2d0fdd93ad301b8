package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// message is the Task of these tests.
type message struct {
	id     int
	alone  bool
	queued time.Time
	size   int
}

func (m message) MayGroup() bool { return !m.alone }

func (m message) QueuedAt() time.Time { return m.queued }

func (m message) Size() int { return m.size }

func messages(n int) []message {
	all := make([]message, n)
	for i := range all {
		all[i].id = i
	}
	return all
}

// rig returns a Scheduler whose handlers may have work, unless idle.
func rig(limits Limits, rules ...Rules) *Scheduler[message] {
	for i := range rules {
		rules[i].GroupSize = max(rules[i].GroupSize, 1)
	}
	return New[message](limits, rules, time.Second)
}

func (s *Scheduler[T]) asks() map[string]int {
	var asked map[string]int
	should := s.ShouldClaim()
	defer func() {
		if should != (len(asked) > 0) {
			panic("ShouldClaim said otherwise")
		}
	}()
	for key, q := range s.Claim() {
		if asked == nil {
			asked = map[string]int{}
		}
		asked[key] = q.Messages
	}
	return asked
}

func circuit(c Circuit) func() Circuit { return func() Circuit { return c } }

func TestClaimsAreSpreadOverHandlersWithWork(t *testing.T) {
	limits := Limits{Concurrency: 10, Prefetch: 10, BatchSize: 100}
	running := func(s *Scheduler[message], key string, groups int) {
		s.Handler(key).Enqueue(messages(groups), false)
		for range groups {
			h, _ := s.Next()
			if h == nil {
				panic("no slot")
			}
		}
	}
	for name, tc := range map[string]struct {
		limits   Limits
		rules    []Rules
		before   func(s *Scheduler[message])
		notified []string
		asks     map[string]int
	}{
		"no handler has work": {limits, []Rules{{Key: "a"}}, nil, nil, nil},
		"all of one":          {limits, []Rules{{Key: "a"}, {Key: "b"}}, nil, []string{"a"}, map[string]int{"a": 20}},
		"evenly of two": {limits, []Rules{{Key: "a"}, {Key: "b"}}, nil, []string{"a", "b"},
			map[string]int{"a": 10, "b": 10}},
		"no more than a batch": {Limits{Concurrency: 10, Prefetch: 10, BatchSize: 7}, []Rules{{Key: "a"}}, nil,
			[]string{"a"}, map[string]int{"a": 7}},
		"as many as may share the slots, but a batch": {limits, []Rules{{Key: "a", GroupSize: 50}}, nil, []string{"a"},
			map[string]int{"a": 100}},
		"a full group at least": {Limits{Concurrency: 2, BatchSize: 2},
			[]Rules{{Key: "a", GroupSize: 50}}, nil, []string{"a"}, map[string]int{"a": 50}},
		"one more than is known to be due": {limits, []Rules{{Key: "a", Counted: true}},
			func(s *Scheduler[message]) { s.Accepted("a", 3) }, nil, map[string]int{"a": 4}},
		"what runs and as much again of a handler with a limit": {limits, []Rules{{Key: "a", Concurrency: 3}}, nil,
			[]string{"a"}, map[string]int{"a": 6}},
		"none of one whose calls do not return": {limits, []Rules{{Key: "a", Concurrency: 1}},
			func(s *Scheduler[message]) { running(s, "a", 1); s.Handler("a").Overdue() }, []string{"a"}, nil},
		"none of a paused one": {limits, []Rules{{Key: "a"}}, func(s *Scheduler[message]) {
			s.Handler("a").Pause(true)
		}, []string{"a"}, nil},
		"none with an open circuit": {limits, []Rules{{Key: "a", Circuit: circuit(Open)}}, nil, []string{"a"}, nil},
		"one for a probe": {limits, []Rules{{Key: "a", GroupSize: 5, Circuit: circuit(HalfOpen)}}, nil,
			[]string{"a"}, map[string]int{"a": 1}},
		"none while the probe runs": {limits, []Rules{{Key: "a", Circuit: circuit(Tried)}}, nil, []string{"a"}, nil},
		"none until half the prefetch has drained": {limits, []Rules{{Key: "a"}}, func(s *Scheduler[message]) {
			running(s, "a", 10)
			s.Handler("a").Enqueue(messages(5), false)
		}, []string{"a"}, nil},
		"as much as has drained then": {limits, []Rules{{Key: "a"}}, func(s *Scheduler[message]) {
			running(s, "a", 10)
			s.Handler("a").Enqueue(messages(4), false)
		}, []string{"a"}, map[string]int{"a": 6}},
		"at once for a handler below its fair share": {limits, []Rules{{Key: "a"}, {Key: "b"}}, func(s *Scheduler[message]) {
			running(s, "a", 10)
			s.Handler("a").Enqueue(messages(10), false)
		}, []string{"b"}, map[string]int{"b": 5}},
		"nothing for what an accept is going to dispatch": {limits, []Rules{{Key: "a", Counted: true}},
			func(s *Scheduler[message]) {
				s.Reserve(map[string]int{"a": 20}, 0)
			}, []string{"a"}, nil},
		"for that, too, once it has expired": {limits, []Rules{{Key: "a", Counted: true}}, func(s *Scheduler[message]) {
			s.Reserve(map[string]int{"a": 20}, 0).Expire()
		}, []string{"a"}, map[string]int{"a": 20}},
	} {
		t.Run(name, func(t *testing.T) {
			s := rig(tc.limits, tc.rules...)
			if tc.before != nil {
				tc.before(s)
			}
			for _, key := range tc.notified {
				s.Notify(map[string]bool{key: true}, false)
			}
			require.Equal(t, tc.asks, s.asks())
		})
	}
}

func TestClaimQueriesTheNextDueTimeOnceBetweenTwoPolls(t *testing.T) {
	s := rig(Limits{Concurrency: 1, BatchSize: 1}, Rules{Key: "a"})
	asks := func() bool { return s.Claim()["a"].AskNextDue }
	s.Refresh()
	require.True(t, asks())
	s.EndClaim(Claimed{NextDueKnown: []string{"a"}})
	s.Notify(nil, true)
	q := s.Claim()["a"]
	require.Equal(t, 1, q.Messages)
	require.False(t, q.AskNextDue)
	s.EndClaim(Claimed{})
	require.Empty(t, s.Claim(), "nothing more is known to be due")
	s.Poll(false)
	require.True(t, asks())
}

func TestClaimRepeatsWhenFullFailedOrNotified(t *testing.T) {
	for name, after := range map[string]func(s *Scheduler[message]){
		"full":               func(s *Scheduler[message]) { s.EndClaim(Claimed{Full: []string{"a"}}) },
		"failed":             func(s *Scheduler[message]) { s.EndClaim(Claimed{Failed: true}) },
		"notified meanwhile": func(s *Scheduler[message]) { s.Notify(map[string]bool{"a": true}, false); s.EndClaim(Claimed{}) },
	} {
		s := rig(Limits{Concurrency: 4, BatchSize: 4}, Rules{Key: "a"})
		s.Refresh()
		require.Equal(t, map[string]int{"a": 4}, s.asks(), name)
		require.Nil(t, s.asks(), "%s: nothing is known while the claim is under way", name)
		after(s)
		require.Equal(t, map[string]int{"a": 4}, s.asks(), name)
	}
}

func TestHandlersAlternateForSlots(t *testing.T) {
	s := rig(Limits{Concurrency: 4}, Rules{Key: "a"}, Rules{Key: "b"})
	s.Handler("a").Enqueue(messages(10), false)
	started := func() (keys string) {
		for h, _ := s.Next(); h != nil; h, _ = s.Next() {
			keys += h.Key()
		}
		return keys
	}
	require.Equal(t, "aaaa", started(), "nothing else has work")
	s.Handler("b").Enqueue(messages(10), false)
	require.Equal(t, "bb", started(), "its fair share, although all slots are taken")
	s.Handler("a").Ended(time.Nanosecond, 0)
	require.Empty(t, started(), "more calls run than there are slots")
	s.Handler("a").Ended(time.Nanosecond, 0)
	s.Handler("a").Ended(time.Nanosecond, 0)
	require.Equal(t, "a", started(), "a is below its fair share")
}

func TestGroupsHoldMessagesThatMayShareASlot(t *testing.T) {
	s := rig(Limits{Concurrency: 9}, Rules{Key: "a", GroupSize: 3})
	queue := messages(6)
	queue[1].alone = true
	s.Handler("a").Enqueue(queue, false)
	groups := func() (ids [][]int) {
		for h, group := s.Next(); h != nil; h, group = s.Next() {
			var its []int
			for _, m := range group {
				its = append(its, m.id)
			}
			ids = append(ids, its)
		}
		return ids
	}
	require.Equal(t, [][]int{{0, 2, 3}, {1}, {4, 5}}, groups())
	s.Handler("a").Enqueue([]message{{id: 7}}, false)
	s.Handler("a").Enqueue([]message{{id: 6}}, true)
	require.Equal(t, [][]int{{6, 7}}, groups(), "the front first")
}

func TestSlotsOfHangingCallsAreReplacedUpToALimit(t *testing.T) {
	s := rig(Limits{Concurrency: 2}, Rules{Key: "a"})
	h := s.Handler("a")
	h.Enqueue(messages(5), false)
	for overdue := range 2 {
		first, _ := s.Next()
		require.NotNil(t, first)
		dropped, ends := h.Overdue()
		require.Equal(t, overdue == 1, ends)
		if ends {
			require.Len(t, dropped, 3, "they are for another worker")
		}
	}
	require.Equal(t, 2, h.Stuck())
	require.Len(t, h.Enqueue(messages(1), false), 1, "no call may start")
	h.Returned(0)
	require.Empty(t, h.Enqueue(messages(1), false))
}

func TestOpenCircuitAndPauseDropTheQueueUntilTheyEnd(t *testing.T) {
	state := Open
	s := rig(Limits{Concurrency: 2, BatchSize: 2}, Rules{Key: "a", Circuit: func() Circuit { return state }})
	h := s.Handler("a")
	h.queue = messages(2)
	dropped, opened := h.ApplyCircuit()
	require.Len(t, dropped, 2)
	require.True(t, opened)
	_, opened = h.ApplyCircuit()
	require.False(t, opened, "it was open before")
	require.True(t, h.CircuitOpen())
	state = HalfOpen
	h.ApplyCircuit()
	require.Equal(t, map[string]int{"a": 1}, s.asks(), "there may be work again")

	state = Closed
	s.EndClaim(Claimed{})
	h.Enqueue(messages(2), false)
	require.Len(t, h.Pause(true), 2)
	require.Nil(t, s.asks())
	h.Pause(false)
	require.Equal(t, map[string]int{"a": 2}, s.asks())
}

func TestLocalDispatchTakesOnlySpareSlots(t *testing.T) {
	limits := Limits{Concurrency: 4, Prefetch: 4, BatchSize: 100}
	counted := func(key string) Rules { return Rules{Key: key, Counted: true} }
	for name, tc := range map[string]struct {
		rules  []Rules
		before func(s *Scheduler[message])
		wanted map[string]int
		grants map[string]int
	}{
		"free slots and the prefetch": {[]Rules{counted("a")}, nil, map[string]int{"a": 100},
			map[string]int{"a": 8}},
		"no more than is wanted": {[]Rules{counted("a")}, nil, map[string]int{"a": 3},
			map[string]int{"a": 3}},
		"what one leaves is for the other": {[]Rules{counted("a"), counted("b")}, nil,
			map[string]int{"a": 100, "b": 1}, map[string]int{"a": 7, "b": 1}},
		"groups share a slot": {[]Rules{{Key: "a", Counted: true, GroupSize: 10}}, nil,
			map[string]int{"a": 100}, map[string]int{"a": 80}},
		"none of what cannot be counted": {[]Rules{{Key: "a"}}, nil, map[string]int{"a": 1}, nil},
		"none of unknown handlers":       {[]Rules{counted("a")}, nil, map[string]int{"b": 1}, nil},
		"none beside an unknown backlog of its own": {[]Rules{counted("a")}, func(s *Scheduler[message]) { s.Refresh() },
			map[string]int{"a": 1}, nil},
		"none while a claim reads what is due": {[]Rules{counted("a")}, func(s *Scheduler[message]) {
			s.Refresh()
			s.Claim()
		},
			map[string]int{"a": 1}, nil},
		"slots for what is known to be due, and one more, are set aside": {[]Rules{counted("a")},
			func(s *Scheduler[message]) { s.Accepted("a", 3) },
			map[string]int{"a": 100}, map[string]int{"a": 4}},
		"the fair share beside another's backlog": {[]Rules{counted("a"), counted("b")}, func(s *Scheduler[message]) {
			s.Notify(map[string]bool{"b": true}, false)
		}, map[string]int{"a": 100}, map[string]int{"a": 2}},
		"none with a circuit that is not closed": {[]Rules{{Key: "a", Counted: true, Circuit: circuit(HalfOpen)}}, nil,
			map[string]int{"a": 1}, nil},
		"none twice": {[]Rules{counted("a")}, func(s *Scheduler[message]) {
			s.Reserve(map[string]int{"a": 8}, 0)
		}, map[string]int{"a": 1}, nil},
		"none for others when it has expired": {[]Rules{counted("a")}, func(s *Scheduler[message]) {
			s.Reserve(map[string]int{"a": 8}, 0).Expire()
		},
			map[string]int{"a": 1}, nil},
		"again after its end": {[]Rules{counted("a")}, func(s *Scheduler[message]) {
			g := s.Reserve(map[string]int{"a": 8}, 0)
			g.Expire()
			g.End()
			g.End()
		}, map[string]int{"a": 8}, map[string]int{"a": 8}},
	} {
		t.Run(name, func(t *testing.T) {
			s := rig(limits, tc.rules...)
			if tc.before != nil {
				tc.before(s)
			}
			g := s.Reserve(tc.wanted, 0)
			require.Equal(t, len(tc.grants) == 0, g.Empty())
			for key := range tc.wanted {
				require.Equal(t, tc.grants[key], g.Messages(key), key)
			}
		})
	}
}

func TestEmptyGrantIsHarmless(t *testing.T) {
	var none *Grant[message]
	require.True(t, none.Empty())
	require.Zero(t, none.Messages("a"))
}

// Contract 5.2, 5.12.
func TestNextLaneMessagesGetImmediatelyFreeSlots(t *testing.T) {
	s := rig(Limits{Concurrency: 4, Prefetch: 10, BatchSize: 10}, Rules{Key: "a"}, Rules{Key: "b", GroupSize: 5},
		Rules{Key: "c", Concurrency: 1})
	next := func(key string, n int) int {
		g := s.ReserveNext(map[string]int{key: n})
		defer g.End()
		return g.Messages(key)
	}
	require.Equal(t, 3, next("a", 3))
	require.Equal(t, 4, next("a", 9), "all slots")
	require.Equal(t, 20, next("b", 30), "five share a slot")
	require.Equal(t, 1, next("c", 2))
	g := s.ReserveNext(map[string]int{"a": 3})
	require.Equal(t, 1, next("a", 9), "the others are reserved")
	g.End()
	s.Notify(map[string]bool{"a": true, "c": true}, false)
	require.Equal(t, 3, next("a", 9), "a slot is left to claims")
	require.Zero(t, next("c", 1), "it is the only one")
	s.Handler("b").Enqueue(messages(1), false)
	require.Equal(t, 15, next("b", 30))
}

// spaced is a Rate for tests.
type spaced struct{ ready, ahead int }

func (r *spaced) Ready() int { return r.ready }
func (r *spaced) Ahead() int { return r.ahead }
func (r *spaced) Take()      { r.ready-- }

func TestRateBoundsClaimsAndStarts(t *testing.T) {
	rate := &spaced{ready: 2, ahead: 4}
	s := rig(Limits{Concurrency: 10, Prefetch: 10, BatchSize: 100}, Rules{Key: "a", Rate: rate, Counted: true})
	s.Notify(nil, true)
	require.Equal(t, map[string]int{"a": 6}, s.asks(), "what may start now, and soon")
	s.EndClaim(Claimed{Full: []string{"a"}})
	h := s.Handler("a")
	h.Enqueue(messages(6), false)
	require.False(t, h.AwaitsRate())
	for range 2 {
		started, _ := s.Next()
		require.Equal(t, h, started)
	}
	started, _ := s.Next()
	require.Nil(t, started)
	require.True(t, h.AwaitsRate())
	require.Nil(t, s.asks(), "enough wait")
	rate.ready = 2
	require.Equal(t, map[string]int{"a": 2}, s.asks(), "half of what may wait can start")
}

func TestAllottedSlotsBoundAHandler(t *testing.T) {
	allotted := 2
	s := rig(Limits{Concurrency: 10, Prefetch: 10, BatchSize: 100},
		Rules{Key: "a", Allotted: func() int { return allotted }})
	s.Notify(nil, true)
	require.Equal(t, map[string]int{"a": 4}, s.asks())
	s.EndClaim(Claimed{Full: []string{"a"}})
	h := s.Handler("a")
	h.Enqueue(messages(4), false)
	for range 2 {
		started, _ := s.Next()
		require.Equal(t, h, started)
	}
	started, _ := s.Next()
	require.Nil(t, started)
	require.Equal(t, 2, h.Calls())
	allotted = 0
	require.Len(t, h.Drop(), 2, "other workers run them")
	require.Nil(t, s.asks())
	require.Len(t, h.Enqueue(messages(1), false), 1, "a claim that was under way is refused")
	allotted = 1
	started, _ = s.Next()
	require.Nil(t, started, "two calls from before still run")
}
