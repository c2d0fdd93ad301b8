package cleanup_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

const month = 30 * 24 * time.Hour

// monthly returns an inbox that keeps everything for a month, in a process with this clock.
func monthly(t *testing.T, d *inboxtest.Database, c inbox.Clock) *inbox.Inbox {
	t.Helper()
	return inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) {
		inboxtest.Defaults(o)
		o.Clock = c
		o.Cleanup.Retention, o.Cleanup.RejectedRetention, o.Cleanup.AuditRetention = month, month, month
		o.Cleanup.SweepMarkers = true
	}), inboxtest.Handlers(inboxtest.Do("a", byID)))
}

// aged makes everything in the inbox older by the database's clock.
func aged(t *testing.T, d *inboxtest.Database, by string) {
	t.Helper()
	for table, columns := range map[string][]string{"inbox_messages": {"received_at"},
		"inbox_handler_statuses": {"created_at", "completed_at"}, "inbox_rejected_messages": {"rejected_at"},
		"inbox_markers": {"processed_at", "expires_at"}, "inbox_audit": {"occurred_at"}} {
		for _, column := range columns {
			inboxtest.Exec(t, d.DB, `UPDATE `+table+` SET `+column+` = `+column+` - CAST(? AS interval)`, by)
		}
	}
}

// TestCleanerWithWrongClockDeletesNothingTooEarly proves contract 3.5: what is deleted is old by
// the database's clock, whatever the cleaner's clock shows.
func TestCleanerWithWrongClockDeletesNothingTooEarly(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		right := monthly(t, d, nil)
		inboxtest.Accept(t, right, "done")
		inboxtest.Process(t, right)
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_rejected_messages (id, channel, topic, "partition", record_offset, record_timestamp, headers, reason, rejected_at)
			VALUES (gen_random_uuid(), 'c', 'topic', 0, 0, now(), '[]', 'bad', now())`)
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_markers (message_id, handler_key, namespace, message_type, processed_at, expires_at)
			VALUES ('m', 'a', '', '', now(), now() + interval '30 days')`)
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_audit (id, actor, action, target, detail, occurred_at, database_role)
			VALUES (gen_random_uuid(), 'ann', 'pause', 'a', '{}', now(), '')`)

		ahead := monthly(t, d, clock.Offset(month+time.Hour))
		require.Equal(t, handler.Deleted{}, clean(t, ahead))
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, right, "done")[0].Outcome)
		aged(t, d, "29 days 23 hours")
		require.Equal(t, handler.Deleted{}, clean(t, ahead))
		aged(t, d, "2 hours")
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1, Markers: 1, Audit: 1, Rejected: 1},
			clean(t, monthly(t, d, clock.Offset(-month))), "a clock that is behind deletes no later either")
	})
}

// TestRetentionIgnoresTheWorkersWrongClock proves contract 3.5: a status
// counts as completed when it was, by the database's clock.
func TestRetentionIgnoresTheWorkersWrongClock(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		right := monthly(t, d, nil)
		for name, offset := range map[string]time.Duration{"behind": -2 * month, "ahead": 2 * month} {
			worker := monthly(t, d, clock.Offset(offset))
			inboxtest.Accept(t, worker, name)
			if offset < 0 { // it does not claim what was created in its future
				inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET created_at = now() - interval '100 days'`)
			}
			drained, err := worker.ProcessPending(context.Background())
			require.NoError(t, err)
			require.Equal(t, 1, drained.Completed)
		}
		aged(t, d, "29 days")
		require.Zero(t, clean(t, right).Statuses)
		aged(t, d, "100 days")
		require.EqualValues(t, 2, clean(t, right).Statuses)
	})
}
