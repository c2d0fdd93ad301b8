//go:build !race

// The race detector of Go 1.26 ends such a process: "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346".

package simulation

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSeeds runs the seed SEED, 1 by default, and the next ones, N in all.
func TestSeeds(t *testing.T) {
	first, n := uint64(1), uint64(1)
	for name, number := range map[string]*uint64{"SEED": &first, "N": &n} {
		if text := os.Getenv(name); text != "" {
			var err error
			*number, err = strconv.ParseUint(text, 10, 64)
			require.NoError(t, err, name)
		}
	}
	for seed := first; seed < first+n; seed++ {
		began := time.Now()
		var report Report
		synctest.Test(t, func(*testing.T) { report = Run(NewPlan(seed)) })
		if dir := os.Getenv("OUT"); dir != "" && len(report.Broken) > 0 {
			_ = os.WriteFile(filepath.Join(dir, strconv.FormatUint(seed, 10)), []byte(strings.Join(report.Timeline, "\n")), 0o600)
		} else if n == 1 || len(report.Broken) > 0 {
			for _, line := range report.Timeline {
				t.Log(line)
			}
		}
		t.Logf("seed %d: %s in %s, %v", seed, report.Lasted, time.Since(began), report.Counts)
		for _, broken := range report.Broken {
			t.Errorf("seed %d: %s", seed, broken)
		}
	}
}
