package routine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestRestartedLoopNeverOverlapsThePrevious(t *testing.T) {
	var loop routine.Loop
	require.NoError(t, loop.Stop(t.Context()), "before Start it does nothing")
	began, end := make(chan int), make(chan struct{})
	run := func(n int) func(context.Context) {
		return func(ctx context.Context) {
			began <- n
			<-ctx.Done()
			<-end
		}
	}
	loop.Start(run(1))
	loop.Start(run(2)) // does nothing
	require.Equal(t, 1, <-began)

	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, loop.Stop(hurried), context.Canceled, "it has not ended")
	loop.Start(run(3))
	select {
	case <-began:
		require.Fail(t, "it runs beside the one before")
	default:
	}
	end <- struct{}{} // the first run ends
	require.Equal(t, 3, <-began)
	close(end)
	require.NoError(t, loop.Stop(t.Context()))
	require.NoError(t, loop.Stop(t.Context()), "twice does nothing")
}
