package synchronous_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Contract 5.4: a call that ignores its timeout fails once its grace is over, and is counted until
// it returns. At most as many of them are left behind as may run at once; then nothing begins until
// one returns.
func TestStuckCallsAreAbandonedReportedAndBounded(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release := make(chan struct{}, 10), make(chan struct{})
		hangs := atomic.Bool{}
		hangs.Store(true)
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error {
			if hangs.Load() {
				entered <- struct{}{}
				<-release
			}
			return nil
		})
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) {
			c.Concurrency, c.HandlerTimeout, c.StuckHandlerGrace, c.MaxRetries = 1, 10*time.Millisecond, 10*time.Millisecond,
				100
		}, h)
		done := make(chan error, 2)
		ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
		defer cancel()
		go func() { done <- r.Deliver(ctx, nil, received(0, "1")) }()
		inboxtest.Receive(t, entered, "the call")
		inboxtest.Eventually(t, func() bool { return counters.Load(telemetry.Failed) == 1 }, "it was given up")
		require.Equal(t, map[string]int{"h": 1}, r.Stuck())
		go func() { done <- r.Deliver(ctx, nil, received(1, "2")) }()
		require.Never(t, func() bool { return len(entered) > 0 || len(done) > 0 }, 200*time.Millisecond, 20*time.Millisecond)
		hangs.Store(false)
		close(release)
		require.NoError(t, inboxtest.Receive(t, done, "a delivery's end"))
		require.NoError(t, inboxtest.Receive(t, done, "the other's"))
		inboxtest.Eventually(t, func() bool { return len(r.Stuck()) == 0 }, "nothing is stuck any more")
		require.EqualValues(t, 2, counters.Load(telemetry.Processed))
	})
}

// The bound also holds for a call that waited for the slot of the stuck call.
func TestSlotOfAStuckCallRunsNoOtherCall(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release := make(chan struct{}, 10), make(chan struct{})
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error { entered <- struct{}{}; <-release; return nil })
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) {
			c.Concurrency, c.HandlerTimeout, c.StuckHandlerGrace, c.MaxRetries = 1, 10*time.Millisecond, 10*time.Millisecond,
				100
		}, h)
		ctx, cancel := bounded(t)
		done := make(chan error, 3)
		for partition := range 3 {
			go func() { done <- r.Deliver(ctx, nil, received(partition, "1")) }()
		}
		inboxtest.Receive(t, entered, "a call")
		inboxtest.Eventually(t, func() bool { return counters.Load(telemetry.Failed) == 1 }, "it was given up")
		require.Never(t, func() bool { return len(entered) > 0 }, 200*time.Millisecond, 20*time.Millisecond)
		require.Equal(t, map[string]int{"h": 1}, r.Stuck())
		cancel()
		for range 3 {
			require.ErrorIs(t, inboxtest.Receive(t, done, "a delivery's end"), envelope.ErrInterrupted)
		}
		close(release)
		inboxtest.Eventually(t, func() bool { return len(r.Stuck()) == 0 }, "it has returned")
	})
}
