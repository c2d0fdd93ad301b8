package idempotenttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type valueKey struct{}

var contexts = []promise{
	{"a context that has ended before the call leaves the body uncalled", func(t *testing.T, f Fixture) {
		r, calls := run("m1", "handler"), 0
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		duplicate, err := f.Store.Run(ctx, r, counting(&calls, nil))
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, duplicate)
		require.Zero(t, calls)
		require.False(t, processed(t, f, r.Key))
		handled(t, f, r)
	}},
	{"a body's context has the caller's values, deadline and cancellation", func(t *testing.T, f Fixture) {
		deadline := time.Now().Add(patience)
		ctx, cancel := context.WithDeadline(context.WithValue(t.Context(), valueKey{}, "value"), deadline)
		defer cancel()
		var (
			value any
			until time.Time
			bound bool
			ended error
		)
		_, err := f.Store.Run(ctx, run("m1", "handler"), func(ctx context.Context) error {
			value = ctx.Value(valueKey{})
			until, bound = ctx.Deadline()
			cancel()
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			ended = ctx.Err()
			return errBody
		})
		require.ErrorIs(t, err, errBody, "its error is the body's, not the context's")
		require.Equal(t, "value", value)
		require.True(t, bound)
		require.False(t, until.After(deadline), "the body's deadline %s is after the caller's %s", until, deadline)
		require.ErrorIs(t, ended, context.Canceled)
	}},
	{"a body's context is not cancelled while the caller's is not", func(t *testing.T, f Fixture) {
		var ended error
		_, err := f.Store.Run(t.Context(), run("m1", "handler"), func(ctx context.Context) error {
			ended = ctx.Err()
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, ended)
	}},
}
