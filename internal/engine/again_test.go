package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stop whose time is over leaves its runs to the next stop, which must not end the process.
func TestStopAfterTimedOutStopEndsRuns(t *testing.T) {
	var a again
	running, r, err := a.begin(t.Context())
	require.NoError(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		require.ErrorContains(t, a.stop(over), "still being run again")
		<-r.stop
		<-running.Done()
	}
	a.end(r)
	require.NoError(t, a.stop(over))
	_, _, err = a.begin(t.Context())
	require.ErrorIs(t, err, errStopping)
	a.reopen()
	_, _, err = a.begin(t.Context())
	require.NoError(t, err)
}
