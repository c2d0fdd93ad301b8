package routine_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestBackoffDoublesUntilItsMaximum(t *testing.T) {
	b := routine.Backoff{First: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	for range 2 {
		for _, limit := range []time.Duration{10, 20, 40, 50, 50} {
			limit *= time.Millisecond
			pause := b.Next()
			require.GreaterOrEqual(t, pause, limit/2)
			require.LessOrEqual(t, pause, limit)
		}
		b.Reset()
	}
	unbounded := routine.Backoff{First: time.Second, Max: math.MaxInt64}
	for range 100 {
		require.Positive(t, unbounded.Next(), "it does not overflow")
	}
	small := routine.Backoff{First: time.Second, Max: time.Millisecond}
	require.LessOrEqual(t, small.Next(), time.Millisecond)
}

func TestBackoffPausesDiffer(t *testing.T) {
	pauses := map[time.Duration]bool{}
	for range 10 {
		b := routine.Backoff{First: time.Second, Max: time.Second}
		pauses[b.Next()] = true
	}
	require.Greater(t, len(pauses), 1)
}

func TestBackoffWaitEndsWithItsContext(t *testing.T) {
	b := routine.Backoff{First: time.Millisecond, Max: time.Hour}
	require.True(t, b.Wait(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, b.Wait(ctx))
}
