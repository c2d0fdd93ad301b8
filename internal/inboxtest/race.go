package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
)

// OneWins runs callers, numbered from 0, at the same time: one of them succeeds,
// all others learn from this error that they came too late.
func OneWins(t testing.TB, callers int, lost error, call func(caller int) error) {
	t.Helper()
	won := 0
	for _, err := range racetest.Together(callers, call) {
		if err == nil {
			won++
			continue
		}
		require.ErrorIs(t, err, lost)
	}
	require.Equal(t, 1, won)
}
