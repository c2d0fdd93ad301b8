package simulation

import (
	"fmt"
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
	n, err := strconv.ParseUint(os.Getenv("N"), 10, 64)
	if err != nil {
		n = 1
	}
	for s := seed; s < seed+n; s++ {
		began := time.Now()
		var report Report
		synctest.Test(t, func(t *testing.T) { report = Run(NewPlan(s)) })
		if n == 1 {
			for _, line := range report.Timeline {
				t.Log(line)
			}
		}
		fmt.Println(s, report.Counts, report.Lasted, time.Since(began))
		for _, b := range report.Broken {
			fmt.Println("BROKEN", s, b)
		}
	}
	require.NotNil(t, n)
}
