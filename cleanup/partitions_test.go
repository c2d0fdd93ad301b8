package cleanup_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
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
				WHERE inhparent = 'inbox_parted_messages'::regclass ORDER BY 1`).Scan(&names).Error)
			return names
		}
		inboxtest.Accept(t, ib, "first", "open")
		inboxtest.Process(t, ib)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_parted_handler_statuses SET completed_at = NULL WHERE message_id = 'open' AND handler_key = 'long'")

		clock.Set(inboxtest.Noon.Add(time.Hour))
		require.Zero(t, clean(t, ib))
		require.Equal(t, []string{"inbox_parted_messages_kept", "inbox_parted_messages_p1", "inbox_parted_messages_p2"}, partitions())
		inboxtest.Accept(t, ib, "second")

		clock.Set(inboxtest.Noon.Add(2 * time.Hour))
		require.Equal(t, handler.Deleted{Statuses: 2}, clean(t, ib))
		require.Equal(t, []string{"first/long", "open/long", "second/long", "second/short"}, statuses(t, ib))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "first")[0].Outcome)

		clock.Set(inboxtest.Noon.Add(3*time.Hour + time.Second))
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1}, clean(t, ib))
		require.NotContains(t, partitions(), "inbox_parted_messages_p1")
		require.Equal(t, []string{"open/long", "second/long", "second/short"}, statuses(t, ib))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "open")[0].Outcome)
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, ib, "first")[0].Outcome)
	})
}

// TestCleanerThatNeverRanSeesPartitions proves that a cleaner with a new store, as of inboxctl cleanup, asks for the
// layout before it deletes.
func TestCleanerThatNeverRanSeesPartitions(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "old")
		inboxtest.Process(t, ib)
		require.NoError(t, inbox.Partition(t.Context(), d.DB, ib.Tables()))
		clock.Set(inboxtest.Noon.Add(2 * time.Hour))
		inboxtest.Accept(t, ib, "new")
		drained, err := ib.ProcessPending(t.Context())
		if errors.Is(err, store.ErrLayoutChanged) { // never an empty success
			drained, err = ib.ProcessPending(t.Context())
		}
		require.NoError(t, err)
		require.Equal(t, 1, drained.Completed)

		st, err := stores.New(d.DB, ib.Tables(), store.Options{TestClock: true})
		require.NoError(t, err)
		options := cleanup.DefaultOptions()
		options.Retention = time.Hour
		c, err := cleanup.New(cleanup.Config{Store: st, Options: options, EveryHandler: true,
			StatementTimeout: testenv.Patience, Clock: clock, Logger: zap.NewNop()})
		require.NoError(t, err)
		deleted, err := c.Clean(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted.Messages)
		var left, dropped int
		require.NoError(t, d.DB.Raw("SELECT count(*) FROM inbox_parted_messages").Scan(&left).Error)
		require.NoError(t, d.DB.Raw("SELECT count(*) FROM pg_class WHERE relname = 'inbox_parted_messages_p0'").Scan(&dropped).Error)
		require.Equal(t, []int{1, 0}, []int{left, dropped})
	})
}
