package scratch

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFailureOfOneEndsWhatHappensMeanwhile(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	succeeds := func(context.Context) error { return nil }
	require.ErrorIs(t, Meanwhile(t.Context(), fails, waits), failed)
	require.ErrorIs(t, Meanwhile(t.Context(), waits, fails), failed)
	require.ErrorIs(t, Meanwhile(t.Context(), succeeds, fails), failed)
	require.NoError(t, Meanwhile(t.Context(), succeeds, succeeds))
}
