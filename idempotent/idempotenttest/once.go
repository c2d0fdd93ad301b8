package idempotenttest

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

var errBody = errors.New("the body failed")

// counting returns a body that counts its calls and returns err.
func counting(calls *int, err error) func(context.Context) error {
	return func(context.Context) error {
		*calls++
		return err
	}
}

// handled checks that the run's body is called once now and succeeds.
func handled(t *testing.T, f Fixture, r idempotent.Run) {
	t.Helper()
	calls := 0
	duplicate, err := f.Store.Run(t.Context(), r, counting(&calls, nil))
	require.NoError(t, err, "%+v", r.Key)
	require.False(t, duplicate, "%+v is taken for a duplicate", r.Key)
	require.Equal(t, 1, calls)
}

// skipped checks that the run is a duplicate now.
func skipped(t *testing.T, f Fixture, r idempotent.Run) {
	t.Helper()
	calls := 0
	duplicate, err := f.Store.Run(t.Context(), r, counting(&calls, nil))
	require.NoError(t, err, "%+v", r.Key)
	require.True(t, duplicate, "%+v is not known as a duplicate", r.Key)
	require.Zero(t, calls, "the body of a duplicate was called")
}

func processed(t *testing.T, f Fixture, key idempotent.Key) bool {
	t.Helper()
	is, err := f.Store.Processed(t.Context(), key)
	require.NoError(t, err)
	return is
}

var onceForAKey = []promise{
	{"a message is handled once and then skipped", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		require.False(t, processed(t, f, r.Key), "nothing was handled yet")
		handled(t, f, r)
		require.True(t, processed(t, f, r.Key))
		skipped(t, f, r)
		skipped(t, f, r)
		require.True(t, processed(t, f, r.Key))
	}},
	{"handlers of one message and messages of one handler are independent", func(t *testing.T, f Fixture) {
		handled(t, f, run("m1", "a"))
		require.False(t, processed(t, f, run("m1", "b").Key))
		handled(t, f, run("m1", "b"))
		handled(t, f, run("m2", "a"))
		for _, r := range []idempotent.Run{run("m1", "a"), run("m1", "b"), run("m2", "a")} {
			skipped(t, f, r)
		}
	}},
	{"the message type is no part of the key and may be empty", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		r.MessageType = ""
		handled(t, f, r)
		r.MessageType = "order.cancelled"
		skipped(t, f, r)
	}},
}

// nothingLeft are runs that leave no marker (contract 8.4), so the message is handled when it is delivered again.
var nothingLeft = []promise{
	{"a body's failure leaves no marker", func(t *testing.T, f Fixture) {
		r, calls := run("m1", "handler"), 0
		for range 3 {
			duplicate, err := f.Store.Run(t.Context(), r, counting(&calls, errBody))
			require.ErrorIs(t, err, errBody)
			require.False(t, duplicate)
			require.False(t, processed(t, f, r.Key))
		}
		require.Equal(t, 3, calls)
		handled(t, f, r)
		skipped(t, f, r)
	}},
	{"a body's panic goes on to the caller and leaves no marker", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		for _, value := range []any{"boom", errBody} {
			require.PanicsWithValue(t, value, func() {
				_, _ = f.Store.Run(t.Context(), r, func(context.Context) error { panic(value) })
			})
			require.False(t, processed(t, f, r.Key))
		}
		handled(t, f, r)
	}},
	{"a body that ends its goroutine leaves no marker", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = f.Store.Run(t.Context(), r, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		wait(t, ended, "the goroutine's end")
		require.False(t, processed(t, f, r.Key))
		handled(t, f, r)
	}},
	{"a body that fails because its context was cancelled leaves no marker", func(t *testing.T, f Fixture) {
		r := run("m1", "handler")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := f.Store.Run(ctx, r, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, processed(t, f, r.Key))
		handled(t, f, r)
	}},
	// The store decides which of the two: a transaction of a cancelled context cannot be committed, but an effect
	// elsewhere has happened.
	{"a body that succeeds after its context was cancelled is processed if no error says otherwise",
		func(t *testing.T, f Fixture) {
			r := run("m1", "handler")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			duplicate, err := f.Store.Run(ctx, r, func(context.Context) error {
				cancel()
				return nil
			})
			require.False(t, duplicate)
			require.Equal(t, err == nil, processed(t, f, r.Key), "its error was %v", err)
		}},
	{"a failure after success changes nothing", func(t *testing.T, f Fixture) {
		r, calls := run("m1", "handler"), 0
		handled(t, f, r)
		duplicate, err := f.Store.Run(t.Context(), r, counting(&calls, errBody))
		require.NoError(t, err)
		require.True(t, duplicate)
		require.Zero(t, calls)
		require.True(t, processed(t, f, r.Key))
	}},
}
