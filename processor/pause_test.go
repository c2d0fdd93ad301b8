package processor_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestPausedHandlerIsNotClaimedByAnyWorker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := context.Background()
		ran := make(chan string, 100)
		note := func(_ context.Context, m inboxtest.Bytes) error { ran <- m.HandlerKey; return nil }
		program := func(db *inboxtest.Database, another bool) *inbox.Inbox {
			pool := db.DB
			if another {
				pool = db.Another(t)
			}
			return inboxtest.New(t, pool, hasty(), inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = processor.ModeCompeting
			}),
				inboxtest.Handlers(inboxtest.Do("paused", note, handler.LegacyKeys("before")), inboxtest.Do("other", note)))
		}
		one, two := program(d, false), program(d, true)
		require.NoError(t, one.Pause(ctx, "before"), "by a legacy key as well")
		inboxtest.Start(t, two)
		inboxtest.Accept(t, two, "1", "2")
		require.Equal(t, "other", inboxtest.Receive(t, ran, "the other handler"))
		require.Equal(t, "other", inboxtest.Receive(t, ran, "the other handler"))
		require.Zero(t, inboxtest.Process(t, one).Picked, "a drain obeys, too")
		require.Empty(t, ran)
		require.Nil(t, inboxtest.Status(t, two, "1", "paused").ProcessingStartedAt)

		require.NoError(t, one.Resume(ctx, "paused"))
		require.Equal(t, "paused", inboxtest.Receive(t, ran, "the resumed handler"))
		require.Equal(t, "paused", inboxtest.Receive(t, ran, "the resumed handler"))

		// Paused while it runs; the pause takes effect within a heartbeat.
		require.NoError(t, one.Pause(ctx, "paused"))
		after := lastBeat(t, d)
		inboxtest.Eventually(t, func() bool { return lastBeat(t, d).After(after) }, "a heartbeat")
		after = lastBeat(t, d)
		inboxtest.Eventually(t, func() bool { return lastBeat(t, d).After(after) }, "the heartbeat before is over")
		inboxtest.Accept(t, two, "3")
		require.Equal(t, "other", inboxtest.Receive(t, ran, "the other handler"))
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, two, "3", "other").CompletedAt != nil
		}, "it was completed")
		require.Empty(t, ran)
		require.NoError(t, one.Resume(ctx, "paused"))
		require.Equal(t, "paused", inboxtest.Receive(t, ran, "the resumed handler"))
	})
}

func TestPausingAnUnknownKeyIsAnError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.EqualError(t, ib.Pause(context.Background(), "x"), `inbox "test": handler key "x" is not registered`)
	})
}
