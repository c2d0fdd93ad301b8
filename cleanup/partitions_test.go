package cleanup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestCleanupDropsPartitions proves contract 6.8, with two retentions: what has passed the shorter one is deleted from
// a partition that waits for the longer one.
func TestCleanupDropsPartitions(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention, o.Cleanup.PartitionInterval = 3*time.Hour, time.Hour
		}), inboxtest.Handlers(inboxtest.Do("short", inboxtest.Nothing, handler.Retention(90*time.Minute)),
			inboxtest.Do("long", inboxtest.Nothing)))
		require.NoError(t, inbox.Partition(t.Context(), d.DB, ib.Tables()))
		partitions := func() (names []string) {
			require.NoError(t, d.DB.Raw(`SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
				WHERE inhparent = 'inbox_messages'::regclass ORDER BY 1`).Scan(&names).Error)
			return names
		}
		inboxtest.Accept(t, ib, "first", "open")
		inboxtest.Process(t, ib)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET completed_at = NULL WHERE message_id = 'open' AND handler_key = 'long'")

		clock.Set(inboxtest.Noon.Add(time.Hour))
		require.Zero(t, clean(t, ib))
		require.Equal(t, []string{"inbox_messages_kept", "inbox_messages_p1", "inbox_messages_p2"}, partitions())
		inboxtest.Accept(t, ib, "second")

		clock.Set(inboxtest.Noon.Add(2 * time.Hour))
		require.Equal(t, handler.Deleted{Statuses: 2}, clean(t, ib))
		require.Equal(t, []string{"first/long", "open/long", "second/long", "second/short"}, statuses(t, ib))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "first")[0].Outcome)

		clock.Set(inboxtest.Noon.Add(3*time.Hour + time.Second))
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1}, clean(t, ib))
		require.NotContains(t, partitions(), "inbox_messages_p1")
		require.Equal(t, []string{"open/long", "second/long", "second/short"}, statuses(t, ib))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "open")[0].Outcome)
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, ib, "first")[0].Outcome)
	})
}
