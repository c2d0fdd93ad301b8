package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Contract 11.5: sampling costs the database little, and health is not judged by an old sample.
func TestSamplingPauseScalesWithQueryTime(t *testing.T) {
	for name, each := range map[string]struct {
		interval, took time.Duration
		failed         bool
		want           time.Duration
	}{
		"quick":                          {15 * time.Second, 10 * time.Millisecond, false, 15 * time.Second},
		"slow":                           {15 * time.Second, 2 * time.Second, false, 40 * time.Second},
		"very slow":                      {15 * time.Second, 20 * time.Second, false, time.Minute},
		"often, whatever it takes":       {5 * time.Millisecond, 2 * time.Second, false, 500 * time.Millisecond},
		"seldom anyway":                  {5 * time.Minute, 20 * time.Second, false, 5 * time.Minute},
		"failed after a timeout":         {15 * time.Second, 30 * time.Second, true, 15 * time.Second},
		"failed, and seldom in any case": {time.Hour, 30 * time.Second, true, time.Hour},
	} {
		require.Equal(t, each.want, pauseAfter(each.interval, each.took, each.failed), name)
	}
}
