package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQueueHoldsATenthOfASecondOfWork proves contract 5.2.
func TestQueueHoldsATenthOfASecondOfWork(t *testing.T) {
	limits := Limits{Concurrency: 10, Prefetch: 2000, BatchSize: 5000}
	for name, tc := range map[string]struct {
		limits Limits
		rules  Rules
		took   time.Duration
		size   int
		asks   int
	}{
		"one for each slot, before a call has ended": {limits, Rules{}, 0, 0, 20},
		"calls of 5 ms":                 {limits, Rules{}, 5 * time.Millisecond, 0, 210},
		"no more than Prefetch":         {limits, Rules{}, time.Microsecond, 0, 2010},
		"nothing for calls of a minute": {limits, Rules{}, time.Minute, 0, 10},
		"nothing without Prefetch":      {Limits{Concurrency: 10, BatchSize: 5000}, Rules{}, time.Microsecond, 0, 10},
		"32 MB":                         {limits, Rules{}, time.Microsecond, 1 << 20, 10 + 33},
		"32 MB of groups":               {limits, Rules{GroupSize: 10}, time.Microsecond, 1 << 20, 10 * (10 + 4)},
		"as much again of a handler with its own limit": {limits, Rules{Concurrency: 3}, time.Microsecond, 0, 6},
		"less of a slow handler with its own limit":     {limits, Rules{Concurrency: 3}, time.Second, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			tc.rules.Key = "a"
			s := rig(tc.limits, tc.rules)
			h := s.Handler("a")
			for i := 0; tc.took > 0 && i < 200; i++ {
				h.Enqueue([]message{{size: tc.size}}, false)
				_, _ = s.Next()
				h.Ended(tc.took, tc.size)
			}
			s.Refresh()
			require.Equal(t, map[string]int{"a": tc.asks}, s.asks())
		})
	}
}

// TestMessagesQueuedForASecondAreLeftToOthers proves contract 5.2.
func TestMessagesQueuedForASecondAreLeftToOthers(t *testing.T) {
	queued := time.Now()
	late := queued.Add(patience)
	s := rig(Limits{Concurrency: 100, Prefetch: 100, BatchSize: 100}, Rules{Key: "a"})
	h := s.Handler("a")
	require.Zero(t, h.LateAt())
	all := messages(50)
	for i := range all {
		all[i].queued = queued
	}
	h.Enqueue(all, false)
	require.Equal(t, late, h.LateAt())
	require.Empty(t, h.DropLate(late.Add(-1)))

	require.Equal(t, all[10:], h.DropLate(late), "100 slots run ten calls of a second in a tenth of a second")
	require.Equal(t, late.Add(patience), h.LateAt())
	require.Empty(t, h.DropLate(late.Add(patience-1)))
	require.Equal(t, all[5:10], h.DropLate(late.Add(patience)), "a call seems to take two seconds")
	_, next := s.Next()
	require.Equal(t, all[:1], next, "the first stay")
}

// TestHandlersClaimNoMoreThanTheirSlotsRun proves contract 5.2: what cannot start would wait for
// a second, be released and be claimed again.
func TestHandlersClaimNoMoreThanTheirSlotsRun(t *testing.T) {
	s := rig(Limits{Concurrency: 10, Prefetch: 2000, BatchSize: 500}, Rules{Key: "fast"}, Rules{Key: "slow"})
	for key, took := range map[string]time.Duration{"fast": 10 * time.Millisecond, "slow": 3 * time.Second} {
		h := s.Handler(key)
		for range 200 {
			h.Enqueue(messages(1), false)
			_, _ = s.Next()
			h.Ended(took, 0)
		}
		h.Enqueue(messages(5), false)
	}
	for range 10 {
		h, _ := s.Next()
		require.NotNil(t, h)
	}
	s.Refresh()
	require.Equal(t, map[string]int{"fast": 50}, s.asks(), "five slots run 50 calls of 10 ms in 100 ms")
}

func TestMessagesThatMustRunAloneAreNotLeftToOtherWorkers(t *testing.T) {
	s := rig(Limits{Concurrency: 1, Prefetch: 100, BatchSize: 100}, Rules{Key: "a", GroupSize: 2})
	h := s.Handler("a")
	all := messages(10)
	for i := range all {
		all[i].alone = i%3 == 0
	}
	h.Enqueue(all, false)
	require.Len(t, h.DropLate(time.Now()), 6)
	require.Zero(t, h.LateAt(), "those that are left do not make the handler seem slower")
	require.Len(t, h.Drop(), 4)
}
