package inboxtest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// OneWins runs callers, numbered from 0, at the same time: one of them succeeds,
// all others learn from this error that they came too late.
func OneWins(t testing.TB, callers int, lost error, call func(caller int) error) {
	t.Helper()
	errs := make([]error, callers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range errs {
		all.Add(1)
		go func() {
			defer all.Done()
			<-start
			errs[i] = call(i)
		}()
	}
	close(start)
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.ErrorIs(t, err, lost)
	}
	require.Equal(t, 1, won)
}
