package cleanup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// statuses returns the stored statuses as "message/handler".
func statuses(t *testing.T, ib *inbox.Inbox) []string {
	t.Helper()
	found := []string{}
	for _, s := range inboxtest.Statuses(t, ib) {
		found = append(found, s.MessageID+"/"+s.HandlerKey)
	}
	return found
}

func TestCleanupUsesEachHandlersRetention(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = 2 * time.Hour
		}), inboxtest.Handlers(
			inboxtest.Do("short", inboxtest.Nothing, handler.Retention(time.Hour), handler.LegacyKeys("was-short")),
			inboxtest.Do("usual", inboxtest.Nothing),
			inboxtest.Do("long", inboxtest.Nothing, handler.Retention(3*time.Hour))))
		inboxtest.Accept(t, ib, "all", "legacy")
		inboxtest.Process(t, ib)
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_handler_statuses SET handler_key = 'was-short' WHERE handler_key = 'short' AND message_id = 'legacy'")
		inboxtest.Exec(t, d.DB,
			"DELETE FROM inbox_handler_statuses WHERE handler_key <> 'was-short' AND message_id = 'legacy'")
		now := inboxtest.Noon
		for _, step := range []struct {
			deleted handler.Deleted
			left    []string
		}{
			{handler.Deleted{Messages: 1, Statuses: 2}, []string{"all/long", "all/usual"}},
			{handler.Deleted{Statuses: 1}, []string{"all/long"}},
			{handler.Deleted{Messages: 1, Statuses: 1}, []string{}},
		} {
			now = now.Add(time.Hour)
			clock.Set(now)
			require.Zero(t, clean(t, ib), "exactly as old as the retention is not older")
			clock.Set(now.Add(time.Second))
			require.Equal(t, step.deleted, clean(t, ib))
			require.Equal(t, step.left, statuses(t, ib))
			if len(step.left) > 0 {
				require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "all")[0].Outcome)
				require.Equal(t, step.left, statuses(t, ib), "a redelivery does not bring back what was cleaned")
			}
		}
		require.Empty(t, stored(t, ib))
	})
}

func TestHandlerRetentionWorksWithoutInboxRetention(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inboxtest.Do("short", inboxtest.Nothing, handler.Retention(time.Hour)), inboxtest.Do("kept", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "both", "one")
		inboxtest.Process(t, ib)
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses WHERE handler_key = 'kept' AND message_id = 'one'")
		clock.Advance(100000 * time.Hour)
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 2}, clean(t, ib))
		require.Equal(t, []string{"both/kept"}, statuses(t, ib))
	})
}

// Not every run reads messages that are older than a short retention and kept by a long one. Their
// statuses that complete late are deleted by a full run.
func TestLateCompletionsAreDeletedByTheNextFullWalk(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inboxtest.Do("short", byID, handler.Retention(time.Hour)), inboxtest.Do("kept", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "pending", "done")
		inboxtest.Process(t, ib)
		clock.Advance(10 * time.Hour)
		require.Equal(t, handler.Deleted{Statuses: 1}, clean(t, ib), "the first run looks at everything")
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_handler_statuses SET completed_at = created_at, outcome = 'processed' WHERE message_id = 'pending' AND handler_key = 'short'")
		runs := 0
		for ; clean(t, ib).Statuses == 0; runs++ {
			require.Less(t, runs, 24)
			clock.Advance(time.Minute)
		}
		require.Greater(t, runs, 0, "not every run looks at what was passed long ago")
	})
}

func TestFullWalkHappensEvenIfEveryRunKeepsAMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("short", byID, handler.Retention(time.Hour)),
				inboxtest.Do("kept", inboxtest.Nothing)),
			inbox.Configure(func(o *inbox.Options) {
				o.Archive = func(_ context.Context, messages []cleanup.Archived) error {
					for _, m := range messages {
						if m.Message.ID == "refused" {
							return errors.New("refused")
						}
					}
					return nil
				}
			}))
		inboxtest.Accept(t, ib, "pending")
		inboxtest.Process(t, ib)
		clock.Advance(5 * time.Hour)
		require.Zero(t, clean(t, ib), "the first run looks at everything")
		inboxtest.Accept(t, ib, "refused")
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_handler_statuses SET completed_at = created_at, outcome = 'processed', next_attempt_at = NULL WHERE handler_key = 'short'")
		runs := 0
		for {
			deleted, err := ib.Cleanup(context.Background())
			require.ErrorIs(t, err, cleanup.ErrArchiveFailed)
			if deleted.Statuses > 0 {
				break
			}
			runs++
			require.Less(t, runs, 24)
			clock.Advance(time.Minute)
		}
		require.Greater(t, runs, 0, "not every run looks at what was passed long ago")
		require.NotContains(t, statuses(t, ib), "pending/short")
		require.Contains(t, statuses(t, ib), "refused/short")
	})
}

// Processes of one inbox may have different handlers, during a deploy or permanently.
func TestCleanupLeavesUnregisteredHandlersToOtherProcesses(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		both := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}), inboxtest.Handlers(
			inboxtest.Do("a", inboxtest.Nothing), inboxtest.Do("b", inboxtest.Nothing, handler.Retention(5*time.Hour))))
		inboxtest.Accept(t, both, "1")
		inboxtest.Process(t, both)
		st := inboxtest.Store(t, d.DB)
		const worker = "0192f000-0000-7000-8000-000000000001"
		require.NoError(t, st.Heartbeat(context.Background(),
			store.Worker{ID: worker, Host: "h", HandlerKeys: []string{"a", "b"}}, clock.Now()))
		clock.Advance(2 * time.Hour)
		one := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		require.Equal(t, handler.Deleted{Statuses: 1}, clean(t, one))
		require.Equal(t, []string{"1/b"}, statuses(t, one))
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_workers")
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1}, clean(t, one),
			"a key without a handler has the inbox's retention")
	})
}
