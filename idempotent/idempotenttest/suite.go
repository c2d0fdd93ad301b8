package idempotenttest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long the suite waits for an event that must happen.
const patience = 2 * time.Minute

// promise is one subtest.
type promise struct {
	name string
	test func(t *testing.T, f Fixture)
}

// Run tests the store that open makes, a new one for each promise. idempotent.Store makes these promises (contract 8.2
// to 8.4); the Fixture says which of them the store need not keep. Keys that the wrapper refuses (empty, longer than
// 200 characters, not valid UTF-8, with NUL: see idempotent.Key.Check) are not tried, because no store gets them.
// Subtests do not run in parallel.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	for _, part := range [][]promise{onceForAKey, nothingLeft, keys, contexts, concurrent, renames, forgetting} {
		for _, p := range part {
			t.Run(p.name, func(t *testing.T) { p.test(t, fixture(t, open)) })
		}
	}
	able := fixture(t, open)
	for _, p := range slices.Concat(capabilities, renameCapabilities) {
		if !p.applies(able) {
			t.Run(p.name+" - NOT TRIED, "+p.without, func(t *testing.T) { t.Logf("not tried: %s", p.without) })
			continue
		}
		t.Run(p.name, func(t *testing.T) { p.test(t, fixture(t, open)) })
	}
}

func fixture(t *testing.T, open func(t *testing.T) Fixture) Fixture {
	t.Helper()
	f := open(t)
	require.NotNil(t, f.Store, "Fixture.Store is required")
	return f
}
