package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Contract 5.9.
func TestSilentWorkerMayClaimForTwoThirdsOfWorkerTimeout(t *testing.T) {
	for silent, may := range map[time.Duration]bool{
		0: true, time.Hour: true, 2*time.Hour - time.Minute: true,
		2*time.Hour + time.Minute: false, 3*time.Hour - time.Minute: false,
	} {
		s := newSession(t.Context(), 3*time.Hour)
		s.last = time.Now().Add(-silent)
		require.Equal(t, may, s.mayClaim(), "after %s", silent)
		require.Equal(t, !may, s.beat(time.Now()), "a heartbeat after %s lets it claim again", silent)
		require.True(t, s.mayClaim())
		s.end(errStopping)
		require.False(t, s.mayClaim())
	}
}
