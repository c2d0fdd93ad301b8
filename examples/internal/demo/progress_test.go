package demo

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScreenFollowsTheOutput(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out)
	require.False(t, s.terminal)
	s.Show("%d of %d", 3, 14)
	s.Show("%d of %d", 4, 14) // too soon
	s.Say("%s", "hello")
	require.Equal(t, "3 of 14\nhello\n", out.String())

	out.Reset()
	s = NewScreen(&out)
	s.terminal = true
	s.Show("0 of 14")
	s.Say("bye")
	require.Equal(t, "\r0 of 14\rbye    \n", out.String())
}

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
