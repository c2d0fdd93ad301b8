package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimeIsConvertedToDatabaseClockByElapsedTime proves contract 6.5: this machine's clock does
// not count, unless it shows that more time has passed, as after a suspension.
func TestTimeIsConvertedToDatabaseClockByElapsedTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	moment := time.Now()
	require.Nil(t, before(now, moment, time.Time{}))
	require.Equal(t, now.Add(-time.Minute), *before(now, moment.Add(time.Minute), moment))
	slept := moment.Add(time.Minute).Round(0).Add(time.Hour) // without the monotonic clock
	require.Equal(t, now.Add(-61*time.Minute), *before(now, slept, moment))
	require.Equal(t, now, *before(now, moment.Round(0).Add(-time.Hour), moment), "a clock that was set back")
}
