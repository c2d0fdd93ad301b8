package cleanup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// byID is a handler that does what the message's ID says.
// longAgo is older than any retention.
var longAgo = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func byID(_ context.Context, m inboxtest.Bytes) error {
	switch m.ID {
	case "poisoned":
		return handler.Poison(errors.New("boom"))
	case "pending":
		return handler.Snooze(10000 * time.Hour)
	}
	return nil
}

// halfway completes one handler and leaves the other.
func halfway(_ context.Context, m inboxtest.Bytes) error {
	if m.ID == "halfway" {
		return handler.Snooze(10000 * time.Hour)
	}
	return nil
}

func clean(t *testing.T, ib *inbox.Inbox) handler.Deleted {
	t.Helper()
	deleted, err := ib.Cleanup(context.Background())
	require.NoError(t, err)
	return deleted
}

func stored(t *testing.T, ib *inbox.Inbox) (messages []string) {
	t.Helper()
	require.NoError(t, ib.DB().Table(ib.Tables().Messages()).Order("id").Pluck("id", &messages).Error)
	return messages
}

func TestCleanupDeletesOnlyOldFinishedMessages(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
			o.Processor.StuckMessageThreshold = 2 * time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID), inboxtest.Do("b", halfway)))
		inboxtest.Accept(t, ib, "done", "poisoned", "pending", "halfway", "discarded", "superseded", "bare")
		require.Equal(t, 11, inboxtest.Process(t, ib).Completed)
		inboxtest.Exec(t, d.DB,
			"UPDATE inbox_handler_statuses SET outcome = message_id WHERE message_id IN ('discarded', 'superseded')")
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses WHERE message_id = 'bare'")
		inboxtest.Accept(t, ib, "processing")
		st := inboxtest.Store(t, d.DB)
		claimed, err := st.Claim(context.Background(), store.ClaimRequest{Now: clock.Now(),
			Limits: []store.KeyLimit{{HandlerKey: "a", Limit: 1}, {HandlerKey: "b", Limit: 1}}})
		require.NoError(t, err)
		claims := claimed.Claims
		require.Len(t, claims, 2)
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_rejected_messages (id, channel, topic, "partition", record_offset, record_timestamp, headers, reason, rejected_at)
			VALUES ('0192f000-0000-7000-8000-000000000001', 'c', 'topic', 0, 0, ?, '[]', 'bad', ?)`, longAgo, longAgo)

		require.Zero(t, clean(t, ib), "nothing is old")
		clock.Advance(time.Hour)
		require.Zero(t, clean(t, ib), "exactly as old as retention is not older")
		inboxtest.Accept(t, ib, "young")
		require.Equal(t, 2, inboxtest.Process(t, ib).Completed)
		clock.Advance(time.Microsecond)

		// Messages "done", "discarded" and "superseded" lose both statuses. "poisoned", "pending"
		// and "halfway" lose the ended one of the two, and the message stays.
		require.Equal(t, handler.Deleted{Messages: 4, Statuses: 3*2 + 3}, clean(t, ib))
		require.Equal(t, []string{"halfway", "pending", "poisoned", "processing", "young"}, stored(t, ib))
		var left []string
		for _, s := range inboxtest.Statuses(t, ib) {
			left = append(left, s.MessageID+"/"+s.HandlerKey)
		}
		require.Equal(t, []string{"halfway/b", "pending/a", "poisoned/a", "processing/a", "processing/b", "young/a",
			"young/b"}, left)
		var rejected int64
		require.NoError(t, d.DB.Table(ib.Tables().RejectedMessages()).Count(&rejected).Error)
		require.EqualValues(t, 1, rejected, "rejected records are never deleted automatically")
		require.Zero(t, clean(t, ib))
	})
}

func TestCleanupWithoutRetentionDeletesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		inboxtest.Accept(t, ib, "done")
		inboxtest.Process(t, ib)
		clock.Advance(100000 * time.Hour)
		require.Zero(t, clean(t, ib))
		require.Equal(t, []string{"done"}, stored(t, ib))
	})
}

func TestCleanupRunsInBatches(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
			o.Cleanup.CleanupBatchSize = 10
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		for i := range 25 {
			inboxtest.Accept(t, ib, fmt.Sprintf("%02d", i))
		}
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		require.Equal(t, handler.Deleted{Messages: 25, Statuses: 25}, clean(t, ib))
		require.Empty(t, stored(t, ib))
		var leases int64
		require.NoError(t, d.DB.Model(&models.Lock{}).Count(&leases).Error)
		require.Zero(t, leases, "the lease is given up")
	})
}

func TestCleanupWithoutTheLeaseChangesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := context.Background()
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		inboxtest.Accept(t, ib, "done")
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		st := inboxtest.Store(t, d.DB)
		const other = "0192f000-0000-7000-8000-000000000001"
		held, err := st.AcquireLease(ctx, "cleanup", other, time.Minute, clock.Now())
		require.NoError(t, err)
		require.True(t, held)

		deleted, err := ib.Cleanup(ctx)
		require.ErrorIs(t, err, cleanup.ErrLeaseHeld)
		require.ErrorContains(t, err, `inbox "test": cleanup: lease "cleanup"`)
		require.Zero(t, deleted)
		require.Equal(t, []string{"done"}, stored(t, ib))

		require.NoError(t, st.ReleaseLease(ctx, "cleanup", other))
		require.EqualValues(t, 1, clean(t, ib).Messages)
	})
}

func TestRunningInboxCleansAfterItsInterval(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = 100 * time.Millisecond
			o.Cleanup.CleanupInterval = 50 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		inboxtest.Accept(t, ib, "done", "poisoned")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return len(stored(t, ib)) == 1 }, "the completed message was cleaned")
		require.Equal(t, []string{"poisoned"}, stored(t, ib))
		inboxtest.Eventually(t, func() bool { return logs.FilterMessage("inbox: cleaned").Len() > 0 }, "it said so")
	})
}

func TestCancelledCleanupEnds(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = time.Hour
		}), inboxtest.Handlers(inboxtest.Do("a", byID)))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := ib.Cleanup(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestCleanedMessageIsAcceptedAgain(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		inboxtest.Accept(t, ib, "done")
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		clean(t, ib)
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, ib, "done")[0].Outcome)
	})
}
