package demo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFailureOfOneFunctionEndsTheOther(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	succeeds := func(context.Context) error { return nil }
	require.ErrorIs(t, Concurrently(ctx, fails, waits), failed)
	require.ErrorIs(t, Concurrently(ctx, waits, fails), failed)
	require.ErrorIs(t, Concurrently(ctx, succeeds, fails), failed)
	require.NoError(t, Concurrently(ctx, succeeds, succeeds))
}
