package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func key(id string) idempotent.Key { return idempotent.Key{MessageID: id, HandlerKey: "handler"} }

// kept checks that a message is handled now, and makes the store remember it for the given time.
func kept(t *testing.T, s *memstore.Store, id string, retention time.Duration) {
	t.Helper()
	duplicate, err := s.Run(t.Context(), idempotent.Run{Key: key(id), Retention: retention},
		func(context.Context) error { return nil })
	require.NoError(t, err)
	require.False(t, duplicate)
}

func remembered(t *testing.T, s *memstore.Store, ids ...string) (are []string) {
	t.Helper()
	for _, id := range ids {
		is, err := s.Processed(t.Context(), key(id))
		require.NoError(t, err)
		if is {
			are = append(are, id)
		}
	}
	return are
}

// held is a call whose body waits.
type held struct {
	release chan error
	result  chan error
}

func hold(t *testing.T, s *memstore.Store, id string) held {
	t.Helper()
	h := held{make(chan error, 1), make(chan error, 1)}
	called := make(chan struct{})
	go func() {
		_, err := s.Run(t.Context(), idempotent.Run{Key: key(id), Retention: time.Hour}, func(context.Context) error {
			close(called)
			return <-h.release
		})
		h.result <- err
	}()
	inboxtest.Receive(t, called, "the body's call")
	return h
}

func (h held) end(t *testing.T, err error) error {
	t.Helper()
	h.release <- err
	return inboxtest.Receive(t, h.result, "the call's result")
}

func TestFullStoreEvictsNoMarkerBeforeItExpires(t *testing.T) {
	clock := fxtest.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := open(t, func(o *memstore.Options) {
		o.MaxKeys = 3
		o.Clock = clock
	})
	kept(t, s, "long", 3*time.Hour)
	kept(t, s, "short", time.Hour)
	kept(t, s, "middle", 2*time.Hour)
	refused := func() {
		t.Helper()
		duplicate, err := s.Run(t.Context(), idempotent.Run{Key: key("new"), Retention: time.Hour},
			func(context.Context) error { panic("called") })
		require.ErrorIs(t, err, memstore.ErrFull)
		require.ErrorContains(t, err, `message "new", handler "handler"`)
		require.ErrorContains(t, err, "option MaxKeys is 3")
		require.False(t, duplicate)
		require.Equal(t, []string{"long", "short", "middle"}, remembered(t, s, "long", "short", "middle", "new"))
	}
	refused()
	clock.Advance(time.Hour)
	refused() // exactly one hour has passed, so it has not expired yet
	clock.Advance(time.Microsecond)
	duplicate, err := s.Run(t.Context(), idempotent.Run{Key: key("short")},
		func(context.Context) error { panic("called") })
	require.NoError(t, err)
	require.True(t, duplicate, "what has expired is a duplicate while it is there")
	clock.Advance(time.Hour) // now two have expired
	kept(t, s, "new", time.Hour)
	require.Equal(t, []string{"long", "middle", "new"}, remembered(t, s, "long", "short", "middle", "new"),
		"the longest expired, and no more than there is need for")
	kept(t, s, "newer", time.Hour)
	require.Equal(t, []string{"long", "new", "newer"}, remembered(t, s, "long", "short", "middle", "new", "newer"))
	require.Equal(t, 3, s.Len())
}

func TestMessageBeingHandledKeepsItsPlaceInTheStore(t *testing.T) {
	s := open(t, func(o *memstore.Options) { o.MaxKeys = 2 })
	kept(t, s, "m1", time.Hour)
	h := hold(t, s, "m2")
	require.Equal(t, 2, s.Len())
	_, err := s.Run(t.Context(), idempotent.Run{Key: key("m3")}, func(context.Context) error { panic("called") })
	require.ErrorIs(t, err, memstore.ErrFull, "else m2 could not be remembered")
	require.ErrorIs(t, h.end(t, errors.ErrUnsupported), errors.ErrUnsupported)
	require.Equal(t, 1, s.Len(), "a failed call gives its place back")
	h = hold(t, s, "m3")
	require.NoError(t, h.end(t, nil))
	require.Equal(t, []string{"m1", "m3"}, remembered(t, s, "m1", "m2", "m3"))
}

func TestCallWaitsForAnotherWithItsKey(t *testing.T) {
	for name, c := range map[string]struct {
		result        error
		wantDuplicate bool
		wantCalls     int
	}{"success": {nil, true, 0}, "failure": {errors.ErrUnsupported, false, 1}} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			first := hold(t, s, "m1")
			type outcome struct {
				duplicate bool
				err       error
			}
			second, calls := make(chan outcome, 1), 0
			// The second call waits as soon as it has asked its context for Done.
			ctx := inboxtest.Watch(t.Context())
			go func() {
				duplicate, err := s.Run(ctx, idempotent.Run{Key: key("m1"), Retention: time.Hour}, func(context.Context) error {
					calls++
					return nil
				})
				second <- outcome{duplicate, err}
			}()
			inboxtest.Receive(t, ctx.DoneCalled, "the second call to wait")
			require.Empty(t, second)
			require.Equal(t, c.result, first.end(t, c.result))
			require.Equal(t, outcome{c.wantDuplicate, nil}, inboxtest.Receive(t, second, "the second call's outcome"))
			require.Equal(t, c.wantCalls, calls)
		})
	}
}

func TestWaitTimeoutIsATypedError(t *testing.T) {
	for name, c := range map[string]struct {
		wait    time.Duration
		message string
	}{"at once": {0, ""}, "after a while": {20 * time.Millisecond, "still so after WaitTimeout of 20ms"}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, func(o *memstore.Options) { o.WaitTimeout = c.wait })
			first := hold(t, s, "m1")
			began := time.Now()
			_, err := s.Run(t.Context(), idempotent.Run{Key: key("m1")}, func(context.Context) error { panic("called") })
			require.ErrorIs(t, err, idempotent.ErrInProgress)
			require.ErrorContains(t, err, c.message)
			require.GreaterOrEqual(t, time.Since(began), c.wait)
			kept(t, s, "m2", time.Hour) // other keys need not wait
			require.NoError(t, first.end(t, nil))
		})
	}
}

func TestWaitingCallEndsWithItsContext(t *testing.T) {
	s := open(t)
	first := hold(t, s, "m1")
	ctx, cancel := context.WithCancel(t.Context())
	watched := inboxtest.Watch(ctx)
	result := make(chan error, 1)
	go func() {
		_, err := s.Run(watched, idempotent.Run{Key: key("m1")}, func(context.Context) error { panic("called") })
		result <- err
	}()
	inboxtest.Receive(t, watched.DoneCalled, "the second call to wait")
	cancel()
	err := inboxtest.Receive(t, result, "the second call's result")
	require.ErrorIs(t, err, idempotent.ErrInProgress)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, first.end(t, nil))
}

func TestCleanupDeletesExpiredMarkers(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := open(t, func(o *memstore.Options) { o.Clock = fxtest.NewClock(at) })
	for i, minutes := range []time.Duration{5, 1, 4, 2, 3} {
		kept(t, s, fmt.Sprint(i), minutes*time.Minute)
	}
	for _, c := range []struct {
		before time.Duration
		want   int64
	}{{time.Minute, 0}, {time.Minute + 1, 1}, {3 * time.Minute, 1}, {3*time.Minute + 1, 1}, {time.Hour, 2}} {
		n, err := s.Cleanup(t.Context(), at.Add(c.before))
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.before)
	}
	require.Zero(t, s.Len())

	for i := range 2_500 { // more than a batch
		kept(t, s, fmt.Sprint(i), time.Minute)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := s.Cleanup(ctx, at.Add(time.Hour))
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, n)
	n, err = s.Cleanup(t.Context(), at.Add(time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 2_500, n)
}

func TestProcessedEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := open(t).Processed(ctx, key("m1"))
	require.ErrorIs(t, err, context.Canceled)
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for _, c := range []struct {
		opt  func(*memstore.Options)
		want string
	}{
		{func(o *memstore.Options) { o.MaxKeys = 0 }, "option MaxKeys = 0: must be 1 or more"},
		{func(o *memstore.Options) { o.WaitTimeout = -1 }, "option WaitTimeout = -1ns: must be 0 (do not wait) or more"},
		{func(o *memstore.Options) { *o = memstore.Options{} }, "start from memstore.DefaultOptions()"},
	} {
		_, err := memstore.New(c.opt)
		require.ErrorContains(t, err, "memory store: ")
		require.ErrorContains(t, err, c.want)
	}
	_, err := memstore.New(nil, func(o *memstore.Options) { *o = memstore.DefaultOptions() })
	require.NoError(t, err)
	require.Equal(t, memstore.Options{MaxKeys: 100_000, WaitTimeout: 10 * time.Second}, memstore.DefaultOptions())
}

func TestHandlerWithoutARetentionIsRememberedFor24Hours(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := open(t, func(o *memstore.Options) { o.Clock = fxtest.NewClock(at) })
	handle, err := idempotent.Wrap(s, "handler", func(context.Context, string) error { return nil },
		idempotent.KeyBy(func(id string) (string, error) { return id, nil }))
	require.NoError(t, err)
	require.NoError(t, handle(t.Context(), "m1"))
	for _, c := range []struct {
		before time.Duration
		want   int64
	}{{24 * time.Hour, 0}, {24*time.Hour + 1, 1}} {
		n, err := s.Cleanup(t.Context(), at.Add(c.before))
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.before)
	}
}
