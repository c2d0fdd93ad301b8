package idempotenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

// The same message in programs before, between and after two renames of its handler, which run side by side while a
// rename is rolled out.
var (
	oldest   = run("m1", "oldest")
	prepared = run("m1", "oldest", "renamed") // for a rename that can be rolled back
	renamed  = run("m1", "renamed", "oldest")
	newest   = run("m1", "newest", "renamed", "oldest")

	programs = []idempotent.Run{oldest, prepared, renamed, newest}
)

// renames checks that a handler remembers under all its keys, so that a rolling rename doubles nothing in either
// direction.
var renames = []promise{
	{"what one program of a rename has handled, every other one skips", func(t *testing.T, f Fixture) {
		for i, first := range programs {
			id := string(rune('a' + i))
			handled(t, f, of(first, id))
			for _, key := range of(first, id).Keys() {
				require.True(t, processed(t, f, key), "%q", key.HandlerKey)
			}
			for _, second := range programs {
				skipped(t, f, of(second, id))
			}
		}
	}},
	{"a failure under several keys leaves a marker under none", func(t *testing.T, f Fixture) {
		calls := 0
		_, err := f.Store.Run(t.Context(), newest, counting(&calls, errBody))
		require.ErrorIs(t, err, errBody)
		require.PanicsWithValue(t, "boom", func() {
			_, _ = f.Store.Run(t.Context(), newest, func(context.Context) error { panic("boom") })
		})
		for _, key := range newest.Keys() {
			require.False(t, processed(t, f, key), "%q", key.HandlerKey)
		}
		handled(t, f, oldest)
		skipped(t, f, newest)
	}},
	{"legacy keys make no other handler's message known", func(t *testing.T, f Fixture) {
		handled(t, f, newest)
		handled(t, f, of(newest, "m2"))
		handled(t, f, run("m1", "other", "older"))
	}},
	{"programs of a rename handle a message one at a time", func(t *testing.T, f Fixture) {
		for i, first := range programs {
			for n, second := range programs {
				id := fmt.Sprintf("%d %d", i, n)
				u := begin(t, f, of(first, id))
				ctx, cancel := context.WithTimeout(t.Context(), moment)
				calls := 0
				duplicate, err := f.Store.Run(ctx, of(second, id), counting(&calls, nil))
				cancel()
				require.True(t, errors.Is(err, idempotent.ErrInProgress) || errors.Is(err, context.DeadlineExceeded), "%v", err)
				require.False(t, duplicate)
				require.Zero(t, calls, "%s ran beside %s", second.Key.HandlerKey, first.Key.HandlerKey)
				require.NoError(t, u.end(t, nil))
				skipped(t, f, of(second, id))
			}
		}
	}},
	{"of 50 calls of the programs of a rename at the same time one handles the message", func(t *testing.T, f Fixture) {
		b := &bodies{}
		var done sync.WaitGroup
		begin := make(chan struct{})
		for i := range callers {
			done.Add(1)
			go func() {
				defer done.Done()
				<-begin
				for {
					_, err := f.Store.Run(t.Context(), programs[i%len(programs)], b.call)
					if !errors.Is(err, idempotent.ErrInProgress) {
						if err != nil {
							t.Errorf("%+v: %v", programs[i%len(programs)].Key, err)
						}
						return
					}
				}
			}()
		}
		close(begin)
		done.Wait()
		require.Equal(t, []int32{1, 0}, []int32{b.calls.Load(), b.overlaps.Load()}, "bodies called, overlaps")
	}},
	{"markers under all keys are forgotten together", func(t *testing.T, f Fixture) {
		handled(t, f, newest)
		n, err := f.Store.Cleanup(t.Context(), f.now().Add(newest.Retention+slack))
		require.NoError(t, err)
		if f.Forgets {
			require.Zero(t, n)
			return
		}
		require.EqualValues(t, len(newest.Keys()), n)
		handled(t, f, oldest)
	}},
}

// renameCapabilities are those promises of a rename that not every store makes.
var renameCapabilities = []capability{
	{promise{"a process that dies in the body of a renamed handler leaves no marker", func(t *testing.T, f Fixture) {
		f.Crash(t, newest)
		for _, key := range newest.Keys() {
			require.False(t, processed(t, f, key), "%q", key.HandlerKey)
		}
		handled(t, f, oldest)
		skipped(t, f, newest)
	}}, func(f Fixture) bool { return f.Crash != nil }, "Fixture.Crash is nil"},

	{promise{"a call that has lost one of its keys to another remembers under none", func(t *testing.T, f Fixture) {
		for i, result := range []error{nil, errBody} {
			r := of(newest, string(rune('a'+i)))
			first := begin(t, f, r)
			lost := r.Keys()[2]
			f.Usurp(t, lost)
			if err := first.end(t, result); result == nil {
				require.ErrorIs(t, err, idempotent.ErrLost)
			} else {
				require.Error(t, err)
			}
			for _, key := range r.Keys() {
				require.False(t, processed(t, f, key), "%q", key.HandlerKey)
			}
			calls := 0
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.Store.Run(ctx, idempotent.Run{Key: lost, Retention: time.Hour}, counting(&calls, nil))
			cancel()
			require.ErrorIs(t, err, idempotent.ErrInProgress, "the other's claim must stand")
			require.Zero(t, calls)
		}
	}}, func(f Fixture) bool { return f.Usurp != nil }, "Fixture.Usurp is nil"},
}

// of returns the run of another message.
func of(r idempotent.Run, messageID string) idempotent.Run {
	r.Key.MessageID = messageID
	return r
}
