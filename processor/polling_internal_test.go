package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPollingComesSoonerOnlyForWorkNobodyToldOf(t *testing.T) {
	const longest = time.Second
	look := func(p *polling) { p.look(false) }
	claim := func(p *polling) { p.claim() }
	finds := func(p *polling) { p.claimed(3) }
	findsNothing := func(p *polling) { p.claimed(0) }
	tell := func(p *polling) { p.tell() }
	steps := func(all ...func(*polling)) []func(*polling) { return all }
	for name, tc := range map[string]struct {
		steps []func(*polling)
		wait  time.Duration
	}{
		"at the beginning":                         {nil, longest},
		"the poll finds nothing":                   {steps(look, claim, findsNothing), longest},
		"the poll finds work":                      {steps(look, claim, finds), 100 * time.Millisecond},
		"and nothing after that":                   {steps(look, claim, finds, look, claim, findsNothing), 200 * time.Millisecond},
		"and nothing for long":                     {steps(look, claim, finds, look, look, look), 800 * time.Millisecond},
		"and nothing for longer":                   {steps(look, claim, finds, look, look, look, look, look, look), longest},
		"and work again":                           {steps(look, claim, finds, look, claim, findsNothing, look, claim, finds), 100 * time.Millisecond},
		"a claim finds work that was told of":      {steps(tell, claim, finds), longest},
		"the claim after a full one finds work":    {steps(look, claim, findsNothing, claim, finds), longest},
		"a due time that the loop knows":           {steps(func(p *polling) { p.look(true) }, claim, finds), longest},
		"a wake-up between the poll and its claim": {steps(look, tell, claim, finds), longest},
		"a wake-up during the poll's claim":        {steps(look, claim, tell, finds), longest},
		"work told of does not slow the poll":      {steps(look, claim, finds, tell, claim, finds, claim, findsNothing), 100 * time.Millisecond},
		"a poll while nothing can be claimed":      {steps(look, look, claim, finds), 100 * time.Millisecond},
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
		p.look(false)
		require.Equal(t, longest, p.wait)
		p.claim()
		require.True(t, p.claimed(1))
		require.Equal(t, min(longest, 100*time.Millisecond), p.wait)
		for range 100 {
			p.look(false)
			require.Positive(t, p.wait)
		}
		require.Equal(t, longest, p.wait)
	}
}
