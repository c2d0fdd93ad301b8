package simulation

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSeed(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = 1
	}
	began := time.Now()
	var report Report
	synctest.Test(t, func(t *testing.T) { report = Run(NewPlan(seed)) })
	for _, line := range report.Timeline {
		t.Log(line)
	}
	t.Log(report.Counts, report.Lasted, time.Since(began))
	require.Empty(t, report.Broken)
}
