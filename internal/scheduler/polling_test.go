package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPollingIsSoonerOnlyForWorkWithoutANotification(t *testing.T) {
	const longest = time.Second
	type steps []func(*Scheduler[message])
	only := func(key string) map[string]bool { return map[string]bool{key: true} }
	poll := func(s *Scheduler[message]) { s.Poll(true) }
	due := func(s *Scheduler[message]) { s.Poll(false) }
	claim := func(s *Scheduler[message]) { s.Claim() }
	claimOfB := func(s *Scheduler[message]) {
		s.Handler("a").Pause(true)
		s.Claim()
		s.Handler("a").Pause(false)
	}
	finds := func(s *Scheduler[message]) { s.EndClaim(Claimed{New: []string{"a"}}) }
	findsARetry := func(s *Scheduler[message]) { s.EndClaim(Claimed{}) }
	findsNothing := findsARetry
	findsOldOnly := func(s *Scheduler[message]) { s.EndClaim(Claimed{Full: []string{"a"}}) }
	tellA := func(s *Scheduler[message]) { s.Notify(only("a"), false) }
	tellB := func(s *Scheduler[message]) { s.Notify(only("b"), false) }
	tellAll := func(s *Scheduler[message]) { s.Notify(nil, true) }
	for name, tc := range map[string]struct {
		steps steps
		wait  time.Duration
	}{
		"at the beginning":       {nil, longest},
		"the poll finds nothing": {steps{poll, claim, findsNothing}, longest},
		"the poll finds work":    {steps{poll, claim, finds}, 100 * time.Millisecond},
		"and nothing after that": {steps{poll, claim, finds, poll, claim, findsNothing},
			200 * time.Millisecond},
		"and nothing for long": {steps{poll, claim, finds, poll, poll, poll},
			800 * time.Millisecond},
		"and nothing for longer": {steps{poll, claim, finds, poll, poll, poll, poll, poll, poll},
			longest},
		"and work again": {steps{poll, claim, finds, poll, claim, findsNothing, poll, claim,
			finds}, 100 * time.Millisecond},
		"a claim finds work that was notified":    {steps{tellA, claim, finds}, longest},
		"the claim after a full one finds work":   {steps{poll, claim, findsOldOnly, claim, finds}, longest},
		"the poll finds more of a known backlog":  {steps{tellA, poll, claim, finds}, longest},
		"a poll at a due time finds new work":     {steps{due, claim, finds}, 100 * time.Millisecond},
		"a poll at a due time finds what was due": {steps{due, claim, findsARetry}, longest},
		"and does not slow the poll": {steps{poll, claim, finds, due, claim, findsARetry, due, claim,
			findsNothing}, 100 * time.Millisecond},
		"a wake-up between the poll and its claim":       {steps{poll, tellA, claim, finds}, longest},
		"a wake-up of all between the two":               {steps{poll, tellAll, claim, finds}, longest},
		"a wake-up during the poll's claim":              {steps{poll, claim, tellA, finds}, longest},
		"a wake-up of all during the poll's claim":       {steps{poll, claim, tellAll, finds}, longest},
		"another handler's between the poll and a claim": {steps{poll, tellB, claim, finds}, 100 * time.Millisecond},
		"another handler's during the poll's claim":      {steps{poll, claim, tellB, finds}, 100 * time.Millisecond},
		"notified work does not slow the poll": {steps{poll, claim, finds, tellA, claim, finds, claim,
			findsNothing}, 100 * time.Millisecond},
		"a poll while nothing can be claimed": {steps{poll, poll, claim, finds}, 100 * time.Millisecond},
		"a poll while one handler cannot be claimed": {steps{poll, claimOfB, findsNothing, claim, finds},
			100 * time.Millisecond},
		"a dispatch during the poll's claim": {steps{poll, claim,
			func(s *Scheduler[message]) { s.Accepted("a", 1) }, finds}, longest},
	} {
		s := New[message](Limits{Concurrency: 10, Prefetch: 10, BatchSize: 10},
			[]Rules{{Key: "a", GroupSize: 1}, {Key: "b", GroupSize: 1}}, longest)
		for _, step := range tc.steps {
			step(s)
		}
		require.Equal(t, tc.wait, s.PollWait(), name)
	}
}

func TestPollingNeverWaitsLongerThanItsInterval(t *testing.T) {
	for _, longest := range []time.Duration{time.Millisecond, 150 * time.Millisecond, 1<<63 - 1} {
		p := newPolling(longest)
		p.backOff()
		require.Equal(t, longest, p.wait)
		p.poll("a")
		p.beginClaim("a")
		require.True(t, p.endClaim([]string{"a"}))
		require.Equal(t, min(longest, 100*time.Millisecond), p.wait)
		for range 100 {
			p.backOff()
			require.Positive(t, p.wait)
		}
		require.Equal(t, longest, p.wait)
	}
}
