package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestLockedStatusBlocksNoOtherAndIsStoredLater(t *testing.T) {
	// Not on SQLite: it locks no rows.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		release := make(chan struct{})
		running := make(chan string, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 5 * time.Second
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
				if m.ID == "locked" {
					running <- m.ID
					<-release
				}
				return nil
			})))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "locked")
		inboxtest.Receive(t, running, "the handler")
		other := d.Another(t).Begin()
		require.NoError(t, other.Exec("SELECT 1 FROM inbox_handler_statuses WHERE message_id = 'locked' FOR UPDATE").Error)
		close(release)
		completed := func(id string) bool { return inboxtest.Status(t, ib, id, "h").CompletedAt != nil }
		for _, id := range many(30) { // steady traffic must not postpone the locked one again and again
			inboxtest.Accept(t, ib, id)
			inboxtest.Eventually(t, func() bool { return completed(id) }, "another message completed")
		}
		require.False(t, completed("locked"))
		require.NoError(t, other.Rollback().Error)
		inboxtest.Eventually(t, func() bool { return completed("locked") }, "the locked status completed")
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == 31 }, "all were counted")
		require.Zero(t, ib.Counters().Fenced)
	})
}

type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text } // panics on nil

func TestNilPointerAsErrorIsAFailureNotACrash(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
			var err *typedNil
			return err
		})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 1, Failed: 1}, inboxtest.Process(t, ib))
		require.Contains(t, *inboxtest.Status(t, ib, "1", "h").LastError, "the handler's error")
	})
}
