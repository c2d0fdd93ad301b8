package processor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestHandlerConcurrencyBoundsItsCalls(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		limited, free := newHanging(), newHanging()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 6
		}), inboxtest.Handlers(
			inboxtest.Do("limited", limited.run, handler.Concurrency(2)), inboxtest.Do("free", free.run)))
		inboxtest.Accept(t, ib, many(30)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return limited.running.Load() == 2 && free.running.Load() == 4
		}, "the rest is the other's")
		var held int64
		require.NoError(t,
			d.DB.Table(ib.Tables().HandlerStatuses()).Where("handler_key = 'limited' AND processing_started_at IS NOT NULL").Count(&held).Error)
		require.LessOrEqual(t, held, int64(4), "what a limited handler cannot run is left to other workers")
		close(free.letGo)
		inboxtest.Eventually(t, func() bool {
			return free.running.Load() == 0 && ib.Counters().Processed == 30
		}, "the other is done")
		require.EqualValues(t, 2, limited.running.Load())
		close(limited.letGo)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
	})
}

func TestHandlerConcurrencyBoundsADrain(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var running, most atomic.Int64
		work := func(ctx context.Context, _ inboxtest.Bytes) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			<-time.After(time.Millisecond)
			return nil
		}
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 8 }),
			inboxtest.Handlers(inboxtest.Do("one", work, handler.Concurrency(1))))
		inboxtest.Accept(t, ib, many(12)...)
		require.Equal(t, 12, inboxtest.Process(t, ib).Completed)
		require.EqualValues(t, 1, most.Load())
	})
}

func TestStuckCallsCountAgainstHandlerConcurrency(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		letGo := make(chan bool)
		var entered atomic.Int64
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 4
		}), inboxtest.Handlers(
			inboxtest.Do("stubborn", func(context.Context, inboxtest.Bytes) error { entered.Add(1); <-letGo; return nil },
				handler.Concurrency(1), handler.Timeout(soon)),
			inboxtest.Do("sound", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1", "2")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return ib.Health().Processor.Stuck["stubborn"] == 1 }, "it was noticed")
		inboxtest.Accept(t, ib, "3")
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 3 }, "the other handler goes on")
		require.EqualValues(t, 1, entered.Load(), "never two at once")
		close(letGo)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all completed")
	})
}

func TestHandlerRetryPolicyOverridesTheInboxes(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		fails := func(context.Context, inboxtest.Bytes) error { return errBoom }
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Processor.MaxRetries = 3
			o.Backoff = func(n int) time.Duration { return time.Duration(n) * time.Hour }
		}), inboxtest.Handlers(
			inboxtest.Do("the inbox's", fails),
			inboxtest.Do("once", fails, handler.MaxRetries(1)),
			inboxtest.Do("own", fails, handler.Backoff(func(n int) time.Duration { return time.Duration(n) * time.Minute })),
			inboxtest.Do("panics", fails, handler.Backoff(func(int) time.Duration { panic("boom") })),
			inboxtest.Do("negative", fails, handler.Backoff(func(int) time.Duration { return -time.Hour })),
		))
		inboxtest.Accept(t, ib, "1")
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 1, drained.Poisoned)
		require.True(t, inboxtest.Status(t, ib, "1", "once").IsPoisoned)
		due := func(key string) time.Duration {
			return inboxtest.Status(t, ib, "1", key).NextAttemptAt.Sub(inboxtest.Noon)
		}
		require.Equal(t, time.Hour, due("the inbox's"))
		require.Equal(t, time.Minute, due("own"))
		require.Equal(t, time.Hour, due("panics"), "the inbox's is what it falls back to")
		require.Equal(t, time.Microsecond, due("negative"), "at once, but not within the same drain for ever")
	})
}

func TestMiddlewareWrapsEveryAttemptAndItsPanicFails(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var around atomic.Int64
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Middleware = append(o.Middleware, func(ctx context.Context, call handler.Call,
				next func(context.Context) error) error {
				around.Add(1)
				require.NotNil(t, handler.DB(ctx), "it is inside the attempt")
				return next(ctx)
			})
		}),
			inboxtest.Handlers(
				inboxtest.Do("plain", inboxtest.Nothing),
				inboxtest.Tx("tx", nothingTx),
				inboxtest.Do("panics", inboxtest.Nothing, handler.Use(func(context.Context, handler.Call,
					func(context.Context) error) error {
					panic("boom")
				})),
			))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Failed: 1}, inboxtest.Process(t, ib))
		require.EqualValues(t, 3, around.Load())
		require.Contains(t, *inboxtest.Status(t, ib, "1", "panics").LastError, "handler panicked: boom")
	})
}
