package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

func TestPollingComesSoonerOnlyForWorkNobodyToldOf(t *testing.T) {
	const longest = time.Second
	now := time.Now()
	poll := func(p *polling) { p.later(); p.ask("a"); p.ask("b") }
	due := func(p *polling) { p.ask("a"); p.ask("b") }
	pollBesideBacklog := func(p *polling) { p.later(); p.ask("b") } // of a
	claim := func(p *polling) { p.claim("a"); p.claim("b") }
	claimOfB := func(p *polling) { p.claim("b") }
	finds := func(p *polling) { p.claimed(p.finds("a", store.Claim{CreatedAt: now, Due: now})) }
	findsARetry := func(p *polling) { p.claimed(p.finds("a", store.Claim{CreatedAt: now, Due: now.Add(time.Second)})) }
	findsNothing := func(p *polling) { p.claimed(false) }
	tellA := func(p *polling) { p.told("a") }
	tellB := func(p *polling) { p.told("b") }
	tellAll := func(p *polling) { p.toldAll() }
	steps := func(all ...func(*polling)) []func(*polling) { return all }
	for name, tc := range map[string]struct {
		steps []func(*polling)
		wait  time.Duration
	}{
		"at the beginning":                               {nil, longest},
		"the poll finds nothing":                         {steps(poll, claim, findsNothing), longest},
		"the poll finds work":                            {steps(poll, claim, finds), 100 * time.Millisecond},
		"and nothing after that":                         {steps(poll, claim, finds, poll, claim, findsNothing), 200 * time.Millisecond},
		"and nothing for long":                           {steps(poll, claim, finds, poll, poll, poll), 800 * time.Millisecond},
		"and nothing for longer":                         {steps(poll, claim, finds, poll, poll, poll, poll, poll, poll), longest},
		"and work again":                                 {steps(poll, claim, finds, poll, claim, findsNothing, poll, claim, finds), 100 * time.Millisecond},
		"a claim finds work that was told of":            {steps(tellA, claim, finds), longest},
		"the claim after a full one finds work":          {steps(poll, claim, findsNothing, claim, finds), longest},
		"the poll finds more of a known backlog":         {steps(pollBesideBacklog, claim, finds), longest},
		"a look for a due time finds new work":           {steps(due, claim, finds), 100 * time.Millisecond},
		"a look for a due time finds what was due":       {steps(due, claim, findsARetry), longest},
		"and does not slow the poll":                     {steps(poll, claim, finds, due, claim, findsARetry, due, claim, findsNothing), 100 * time.Millisecond},
		"a wake-up between the poll and its claim":       {steps(poll, tellA, claim, finds), longest},
		"a wake-up of all between the two":               {steps(poll, tellAll, claim, finds), longest},
		"a wake-up during the poll's claim":              {steps(poll, claim, tellA, finds), longest},
		"a wake-up of all during the poll's claim":       {steps(poll, claim, tellAll, finds), longest},
		"another handler's between the poll and a claim": {steps(poll, tellB, claim, finds), 100 * time.Millisecond},
		"another handler's during the poll's claim":      {steps(poll, claim, tellB, finds), 100 * time.Millisecond},
		"work told of does not slow the poll":            {steps(poll, claim, finds, tellA, claim, finds, claim, findsNothing), 100 * time.Millisecond},
		"a poll while nothing can be claimed":            {steps(poll, poll, claim, finds), 100 * time.Millisecond},
		"a poll while one handler cannot be claimed":     {steps(poll, claimOfB, findsNothing, claim, finds), 100 * time.Millisecond},
	} {
		p := newPolling(longest)
		for _, step := range tc.steps {
			step(&p)
		}
		require.Equal(t, tc.wait, p.wait, name)
	}
}

func TestPollingNeverWaitsLongerThanItsInterval(t *testing.T) {
	for _, longest := range []time.Duration{time.Millisecond, 150 * time.Millisecond, 1<<63 - 1} {
		p := newPolling(longest)
		p.later()
		require.Equal(t, longest, p.wait)
		p.claimed(true)
		require.Equal(t, min(longest, 100*time.Millisecond), p.wait)
		for range 100 {
			p.later()
			require.Positive(t, p.wait)
		}
		require.Equal(t, longest, p.wait)
	}
}
