package routine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestSleepEndsWithItsTimeOrItsContext(t *testing.T) {
	require.True(t, routine.Sleep(t.Context(), time.Millisecond))
	require.True(t, routine.Sleep(t.Context(), -time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	require.False(t, routine.Sleep(ctx, time.Hour))
	for range 100 {
		require.False(t, routine.Sleep(ctx, 0), "the context has ended, whatever the time")
	}
}

func TestSignalsThatNobodyHasReceivedAreOne(t *testing.T) {
	s := routine.NewSignal()
	s.Ring()
	s.Ring()
	<-s
	select {
	case <-s:
		require.Fail(t, "it was rung twice and heard three times")
	default:
	}
	s.Ring()
	<-s
}
