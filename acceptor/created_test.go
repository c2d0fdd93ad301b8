package acceptor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestStatusCreationUsesInjectedClock proves contract 3.5: ages, waits and failure groups use
// created_at.
func TestStatusCreationUsesInjectedClock(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		advanced := fxtest.NewClock(time.Now())
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = advanced }),
			inboxtest.Handlers(nothing("a")))
		later := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = advanced }),
			inboxtest.Handlers(nothing("a"), nothing("b")))
		advanced.Advance(48 * time.Hour)
		inboxtest.Accept(t, ib, "1")
		require.True(t, advanced.Now().Equal(inboxtest.Status(t, ib, "1", "a").CreatedAt))
		advanced.Advance(time.Hour)
		inboxtest.Accept(t, later, "1")
		require.True(t, advanced.Now().Equal(inboxtest.Status(t, ib, "1", "b").CreatedAt), "added to a known message")
		drained, err := later.ProcessPending(context.Background())
		require.NoError(t, err)
		require.Equal(t, 2, drained.Completed, "due at once")
	})
}

// TestFastClockCreatesNoStatusInTheFuture proves that other processes need
// not wait for a new message until their clocks have caught up.
func TestFastClockCreatesNoStatusInTheFuture(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ahead := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock.Offset(time.Hour)
		}), inboxtest.Handlers(nothing("a")))
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		inboxtest.Accept(t, ahead, "1")
		require.WithinDuration(t, time.Now(), inboxtest.Status(t, ib, "1", "a").CreatedAt, 30*time.Minute)
		drained, err := ib.ProcessPending(context.Background())
		require.NoError(t, err)
		require.Equal(t, 1, drained.Completed)
	})
}
