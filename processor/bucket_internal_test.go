package processor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keyed returns the bucket of a rate by key that has run for long.
func keyed(perSecond float64, burst int, now time.Time) *bucket {
	b := newBucket(true, false)
	b.set(perSecond, burst)
	b.tokens = tokens{n: float64(burst), at: now}
	return b
}

// TestKeyNeverExceedsItsRate proves contract 5.18 for keys: whenever messages come, in any order.
func TestKeyNeverExceedsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.Float64Range(0.01, 100).Draw(t, "rate"), rapid.IntRange(1, 10).Draw(t, "burst")
		now := time.Now()
		b := keyed(perSecond, burst, now)
		started := map[string][]time.Time{}
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 2_000).Draw(t, "milliseconds")) * time.Millisecond)
			key := fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "key"))
			if b.admit(key, rapid.IntRange(0, 3).Draw(t, "before"), now) == 0 {
				started[key] = append(started[key], now)
			}
			if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				b.forgetAt = 0
			}
		}
		for _, at := range started {
			for i := range at {
				for j := i; j < len(at); j++ {
					require.LessOrEqual(t, float64(j-i+1), perSecond*at[j].Sub(at[i]).Seconds()+float64(burst)+1e-6)
				}
			}
		}
	})
}

// backlog simulates messages of one key, which are claimed when they are due, by the worker that chosen returns. It
// returns how often each was set aside, and when the last began.
func backlog(n int, workers []*bucket, chosen func(claim int) int, now time.Time) (aside []int, last time.Time) {
	type status struct {
		id, before int
		due        time.Time
	}
	var pending []status
	for i := range n {
		pending = append(pending, status{id: i, due: now})
	}
	aside = make([]int, n)
	for claim := 0; len(pending) > 0; claim++ {
		slices.SortFunc(pending, func(a, b status) int { return a.due.Compare(b.due) })
		s := pending[0]
		pending = pending[1:]
		last = s.due
		if wait := workers[chosen(claim)].admit("k", s.before, s.due); wait > 0 {
			s.before, s.due = s.before+1, s.due.Add(wait)
			aside[s.id]++
			pending = append(pending, s)
		}
	}
	return aside, last
}

// TestBacklogOfAKeyIsSetAsideOnce proves contract 5.18: a worker alone claims each message twice.
func TestBacklogOfAKeyIsSetAsideOnce(t *testing.T) {
	now := time.Now()
	aside, last := backlog(500, []*bucket{keyed(5, 10, now)}, func(int) int { return 0 }, now)
	require.LessOrEqual(t, slices.Max(aside), 2)
	require.WithinDuration(t, now.Add(490*time.Second/5), last, 2*time.Second)
}

// TestMessageIsSetAsideFewTimesWhicheverWorkerClaimsIt proves contract 5.18: each wait is twice as long as the one
// before.
func TestMessageIsSetAsideFewTimesWhicheverWorkerClaimsIt(t *testing.T) {
	for name, chosen := range map[string]func(int) int{
		"in turn":               func(claim int) int { return claim % 4 },
		"one sets all aside":    func(claim int) int { return map[bool]int{true: 0, false: claim % 4}[claim < 500] },
		"one claims nearly all": func(claim int) int { return map[bool]int{true: 1, false: 0}[claim%10 == 0] },
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			var workers []*bucket
			for range 4 {
				workers = append(workers, keyed(5.0/4, 2, now))
			}
			aside, last := backlog(500, workers, chosen, now)
			total := 0
			for _, n := range aside {
				total += n
			}
			t.Log("on average", float64(total)/500, "at most", slices.Max(aside), "for", last.Sub(now))
			require.LessOrEqual(t, slices.Max(aside), 12)
		})
	}
}

func TestDiscardedMessagesDelayNoOther(t *testing.T) {
	now := time.Now()
	b := keyed(1, 2, now)
	for range 100 {
		b.admit("k", 0, now) // set aside, and then discarded
	}
	require.Greater(t, b.admit("k", 0, now.Add(time.Second)), 90*time.Second, "the others come first")
	require.Zero(t, b.admit("k", 0, now.Add(3*time.Second)), "they have not come")
}

func TestBucketsOfIdleKeysAreForgotten(t *testing.T) {
	now := time.Now()
	b := keyed(1, 1, now)
	for i := range 5_000 {
		require.Zero(t, b.admit(fmt.Sprint(i), 0, now.Add(time.Duration(i)*10*time.Millisecond)))
	}
	require.Less(t, len(b.keys), 2_000)
}
