//go:build !race

// The race detector of Go 1.26 ends such a process: "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346".

package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubble runs a plan in a bubble. What packages draw from crypto/rand follows from the seed.
func inBubble(t *testing.T, plan Plan) (report Report) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, plan.Seed)
		report = Run(plan)
	})
	return report
}

// TestSeeds runs seeds for MINUTES, one after the other, from SEED or from one that it draws. With KEEP it runs that
// part of SEED's plan, as often as fits. Without MINUTES it runs a single seed. With SHRINK=no it prints a failing plan
// as it is.
func TestSeeds(t *testing.T) {
	seed := rand.Uint64N(1e12)
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "SEED")
	}
	minutes, err := strconv.ParseFloat("0"+os.Getenv("MINUTES"), 64)
	require.NoError(t, err, "MINUTES")
	began, last := time.Now(), time.Now().Add(time.Duration(minutes*float64(time.Minute)))
	runs, virtual, counts := 0, time.Duration(0), map[string]int{}
	t.Logf("from seed %d", seed)
	for {
		plan := NewPlan(seed)
		if text := os.Getenv("KEEP"); text != "" {
			kept, err := ParseKept(text)
			require.NoError(t, err, "KEEP")
			plan = plan.Only(kept)
		} else {
			seed++
		}
		report := inBubble(t, plan)
		runs, virtual = runs+1, virtual+report.Lasted
		for what, n := range report.Counts {
			counts[what] += n
		}
		if len(report.Broken) > 0 {
			shrunk(t, plan, report)
		}
		if t.Failed() || !time.Now().Before(last) {
			break
		}
	}
	t.Logf("%d runs and %.1f virtual hours in %s", runs, virtual.Hours(), time.Since(began).Round(time.Second))
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d %s", counts[what], what)
	}
}

// shrunk fails the test with the part of a plan that still breaks a promise.
func shrunk(t *testing.T, plan Plan, report Report) {
	until := time.Now().Add(2 * time.Minute)
	kept := whole(plan)
	if os.Getenv("KEEP") == "" && os.Getenv("SHRINK") != "no" {
		kept, report = Shrink(plan, report, func(p Plan) Report { return inBubble(t, p) },
			func() bool { return time.Now().Before(until) })
	}
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d breaks promises. What is left of its plan:\n", plan.Seed)
	for _, line := range report.Timeline {
		fmt.Fprintln(&text, line)
	}
	fmt.Fprintf(&text, "Repeat it, which may take a few runs, with: make simulate MINUTES=1 SEED=%d KEEP=%s", plan.Seed, kept)
	t.Error(text.String())
}
