package synchronous_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// bounded returns a context that ends when it is cancelled, and with the test. Its own deadline is
// later than any wait of the tests, so no test can pass because of it.
func bounded(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*inboxtest.Patience)
	t.Cleanup(cancel)
	return ctx, cancel
}

func TestStoppingRunnerBeginsNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var (
			ran      []string
			stopAt   string
			stopping chan struct{}
		)
		do := func(key string) *handler.Handler {
			return handler.New(key, func(context.Context, inboxtest.Bytes) error {
				if ran = append(ran, key); key == stopAt {
					close(stopping)
				}
				return nil
			})
		}
		r, counters := newRunner(t, d.DB, nil, do("a"), do("b"))
		deliver := func(at string) error {
			ran, stopAt, stopping = nil, at, make(chan struct{})
			if at == "" {
				close(stopping)
			}
			ctx, _ := bounded(t)
			return r.Deliver(ctx, stopping, received(0, "1"))
		}
		require.ErrorIs(t, deliver(""), envelope.ErrInterrupted)
		require.Empty(t, ran)
		require.ErrorIs(t, deliver("a"), envelope.ErrInterrupted)
		require.Equal(t, []string{"a"}, ran, "the running one finished, and the other was not begun")
		require.NoError(t, deliver("b"), "the record was at its end")
		require.Equal(t, []string{"a", "b"}, ran)
		require.Zero(t, counters.Load(telemetry.Failed)+counters.Load(telemetry.Released))
	})
}

func TestStopEndsWaitsForSlotsAndPauses(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release := make(chan string, 10), make(chan struct{})
		h := handler.New("h", func(_ context.Context, m inboxtest.Bytes) error {
			entered <- m.ID
			if m.ID == "fails" {
				return handler.RetryAfter(time.Hour, errBoom)
			}
			<-release
			return nil
		})
		r, _ := newRunner(t, d.DB, func(c *synchronous.Config) { c.Concurrency = 1 }, h)
		ctx, _ := bounded(t)
		stopping, running, waiting := make(chan struct{}), make(chan error, 1), make(chan error, 2)
		go func() { waiting <- r.Deliver(ctx, stopping, received(0, "fails")) }()
		require.Equal(t, "fails", inboxtest.Receive(t, entered, "the call that fails"))
		go func() { running <- r.Deliver(ctx, stopping, received(1, "holds the slot")) }()
		require.Equal(t, "holds the slot", inboxtest.Receive(t, entered, "the call"))
		go func() { waiting <- r.Deliver(ctx, stopping, received(2, "waits for it")) }()
		require.Never(t, func() bool { return len(entered)+len(waiting) > 0 }, 100*time.Millisecond, 10*time.Millisecond)

		close(stopping)
		require.ErrorIs(t, inboxtest.Receive(t, waiting, "the end of one that waits"), envelope.ErrInterrupted)
		require.ErrorIs(t, inboxtest.Receive(t, waiting, "the end of the other"), envelope.ErrInterrupted)
		close(release)
		require.NoError(t, inboxtest.Receive(t, running, "the end of the one that ran"))
		require.Empty(t, entered)
	})
}

func TestStopDoesNotWaitForAnAbandonedCall(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release, done := make(chan struct{}, 10), make(chan struct{}), make(chan error, 1)
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error { entered <- struct{}{}; <-release; return nil })
		r, _ := newRunner(t, d.DB, nil, h)
		first, cancel := bounded(t)
		go func() { done <- r.Deliver(first, nil, received(0, "1")) }()
		inboxtest.Receive(t, entered, "the call")
		cancel()
		require.ErrorIs(t, inboxtest.Receive(t, done, "the first delivery's end"), envelope.ErrInterrupted)

		again, _ := bounded(t)
		stopping := make(chan struct{})
		go func() { done <- r.Deliver(again, stopping, received(0, "1")) }()
		require.Never(t, func() bool { return len(entered)+len(done) > 0 }, 100*time.Millisecond, 10*time.Millisecond)
		close(stopping)
		require.ErrorIs(t, inboxtest.Receive(t, done, "the second's"), envelope.ErrInterrupted)
		require.Empty(t, entered)
		close(release)
		inboxtest.Eventually(t, func() bool { return len(r.Stuck()) == 0 }, "it has returned")
	})
}
