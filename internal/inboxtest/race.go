package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
)

// OneWins runs callers, numbered from 0, at the same time. One of them must succeed, and all others
// must return the error lost.
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
