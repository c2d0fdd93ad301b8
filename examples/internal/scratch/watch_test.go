package scratch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFailureOfOneEndsWhatHappensMeanwhile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	succeeds := func(context.Context) error { return nil }
	require.ErrorIs(t, Meanwhile(ctx, fails, waits), failed)
	require.ErrorIs(t, Meanwhile(ctx, waits, fails), failed)
	require.ErrorIs(t, Meanwhile(ctx, succeeds, fails), failed)
	require.NoError(t, Meanwhile(ctx, succeeds, succeeds))
}
