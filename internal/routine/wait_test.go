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

func TestUnreceivedNotificationsAreMerged(t *testing.T) {
	s := routine.NewSignal()
	s.Notify()
	s.Notify()
	<-s
	select {
	case <-s:
		require.Fail(t, "two notifications were received as two")
	default:
	}
	s.Notify()
	<-s
}

func TestWaitForALockEndsWithItsContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	l := routine.NewLock()
	require.NoError(t, l.Acquire(ended), "a free lock")
	require.ErrorIs(t, l.Acquire(ended), context.Canceled)
	acquired := make(chan error)
	go func() { acquired <- l.Acquire(t.Context()) }()
	l.Release()
	require.NoError(t, <-acquired)
	l.Release()
	require.Panics(t, l.Release)
}
