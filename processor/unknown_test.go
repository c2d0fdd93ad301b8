package processor_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// Contract 5.7, 5.14.
func TestDrainLeavesAndReportsUnregisteredKeys(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		theirs := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("theirs", inboxtest.Nothing)))
		inboxtest.Accept(t, theirs, "1", "2")
		log, logs := inboxtest.Observe()
		ours := inboxtest.New(t, d.Another(t), log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.UnknownKeyGrace = 0
		}),
			inboxtest.Handlers(inboxtest.Do("ours", inboxtest.Nothing)))
		inboxtest.Accept(t, ours, "3")
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ours))
		inboxtest.Process(t, ours)
		require.Equal(t, 1, logs.FilterMessageSnippet("handler key").FilterFieldKey("handler_key").Len(),
			"one warning for each key")
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, theirs))
	})
}

// Contract 5.7: a program that drains now and then, such as a cron job, is known by the row that
// its drains leave.
func TestWorkersLeaveKeysOfOccasionalDrains(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		cron := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("cron", inboxtest.Nothing)))
		inboxtest.Process(t, cron)
		inboxtest.Accept(t, cron, "1")
		drainedAt(t, d, 7*24)
		// When a key that no program lists is reported, sweeps have checked the other keys, too.
		lost := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("lost", inboxtest.Nothing)))
		inboxtest.Accept(t, lost, "2")
		worker := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.UnknownKeyGrace = 0
		}),
			inboxtest.Handlers(inboxtest.Do("worker", inboxtest.Nothing)))
		end := inboxtest.Start(t, worker)
		inboxtest.Eventually(t, func() bool {
			return slices.Equal([]string{"lost"}, worker.Health().Processor.UnknownKeys)
		}, "the unknown key is reported alone")
		end()
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, cron))
	})
}

func TestDrainsRowIsDeletedAfterEightDays(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		cron := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("cron", inboxtest.Nothing)))
		inboxtest.Process(t, cron)
		inboxtest.Accept(t, cron, "1")
		drainedAt(t, d, 8*24+1)
		worker := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.UnknownKeyGrace = 0
		}),
			inboxtest.Handlers(inboxtest.Do("worker", inboxtest.Nothing)))
		inboxtest.Start(t, worker)
		inboxtest.Eventually(t, func() bool {
			return slices.Equal([]string{"cron"}, worker.Health().Processor.UnknownKeys)
		}, "its key is unknown")
		inboxtest.Eventually(t, func() bool { return len(workers(t, d)) == 1 }, "its row is pruned")
	})
}

// drainedAt moves the only drain's row that many hours into the past.
func drainedAt(t *testing.T, d *inboxtest.Database, hoursAgo time.Duration) {
	t.Helper()
	require.Len(t, workers(t, d), 1)
	at := system.Now().UTC().Add(-hoursAgo * time.Hour)
	inboxtest.Exec(t, d.DB, "UPDATE inbox_workers SET started_at = ?, heartbeat_at = ?, stopped_at = ?", at, at, at)
}

// Contract 5.14: the counts of a drain add up to what it picked.
func TestDrainedCountsAddUp(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		var ib *inbox.Inbox
		ib = inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxAbandoned = 2
			o.Processor.StuckMessageThreshold = time.Minute
		}),
			inboxtest.Handlers(
				inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
					switch m.ID {
					case "fails":
						return context.DeadlineExceeded
					case "poisons":
						return handler.Poison(context.DeadlineExceeded)
					case "snoozes":
						return handler.Snooze(time.Hour)
					case "is taken over":
						inboxtest.Exec(t, ib.DB(),
							"UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = 'is taken over'")
					}
					return nil
				}), inboxtest.Do("new", inboxtest.Nothing, handler.LegacyKeys("old"))))
		old := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("old", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "stuck once", "stuck too often")
		claim(t, d, clock, "", 10, "h")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET abandoned_count = 1 WHERE message_id = 'stuck too often'")
		clock.Advance(2 * time.Minute)
		inboxtest.Accept(t, ib, "completes", "fails", "poisons", "snoozes", "is taken over")
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses WHERE handler_key = 'new' AND message_id <> 'completes'")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handlers SET legacy_keys = ''")
		inboxtest.Accept(t, old, "completes") // a duplicate, and the row of the program before the rename
		drained := inboxtest.Process(t, ib)
		// Completed: "completes" twice and its superseded sibling, "stuck once".
		require.Equal(t, processor.Drained{Picked: 9, Completed: 4, Failed: 1, Poisoned: 2, Released: 1, Unstored: 1},
			drained)
	})
}
