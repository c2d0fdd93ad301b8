package cleanup_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// at returns a partition of channel "c" that has caught up to a moment, or never if that is zero.
func at(partition int32, caughtUp time.Time) models.Partition {
	p := models.Partition{Channel: "c", GroupID: "g", Topic: "orders", Partition: partition}
	if !caughtUp.IsZero() {
		p.CaughtUpAt = &caughtUp
	}
	return p
}

// record stores what partitions have caught up to, as a process that consumes does.
func record(t *testing.T, d *inboxtest.Database, now time.Time, rows ...models.Partition) {
	t.Helper()
	require.NoError(t, inboxtest.Store(t, d.DB).RecordProgress(t.Context(), rows, nil, now))
}

// cleaner returns a Cleaner on the same tables as an inbox whose messages are due for cleanup: they
// completed two hours ago, and are kept for one.
func cleaner(
	t *testing.T, d *inboxtest.Database, n int, change func(cfg *cleanup.Config),
) (c *cleanup.Cleaner, clock *fxtest.Clock, stored func() int) {
	t.Helper()
	ib := old(t, d, nil, n)
	clock = fxtest.NewClock(inboxtest.Noon.Add(2 * time.Hour))
	opts := cleanup.DefaultOptions()
	opts.Retention = time.Hour
	cfg := cleanup.Config{Store: inboxtest.Store(t, d.DB), Options: opts, StatementTimeout: inboxtest.Patience,
		Clock: clock, Logger: zap.NewNop()}
	change(&cfg)
	c, err := cleanup.New(cfg)
	require.NoError(t, err)
	return c, clock, func() int { return inboxtest.CountMessages(t, ib) }
}

// TestCleanupKeepsMessagesAPartitionMayRedeliver proves contract 6.5: age is measured to the moment that
// the partition which is furthest behind has caught up to, whichever process has it.
func TestCleanupKeepsMessagesAPartitionMayRedeliver(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c, clock, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Options.AuditRetention, cfg.Options.SweepMarkers = time.Hour, true
		})
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_audit (id, actor, action, target, detail, occurred_at, database_role)
			VALUES ('0192f000-0000-7000-8000-000000000001', 'ann', 'pause', 'a', '{}', ?, '')`, inboxtest.Noon)
		for i, at := range []time.Duration{-9 * 24 * time.Hour, -7 * 24 * time.Hour} {
			require.NoError(t, d.DB.Create(&models.Request{ID: fmt.Sprintf("0192f000-0000-7000-8000-%012d", i), Kind: "cleanup",
				Argument: "{}", Actor: "ann", RequestedAt: inboxtest.Noon.Add(at)}).Error)
		}
		now := clock.Now()
		record(t, d, now, at(-1, now), at(0, now), at(1, time.Time{}))
		deleted, err := c.Clean(t.Context())
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, err, &waiting)
		require.Equal(t, &cleanup.WaitingError{Channel: "c", GroupID: "g", Topic: "orders", Partition: 1}, waiting)
		require.EqualError(t, err, `cleanup: waiting for channel "c" in group "g": orders/1 has never been read to its end`)
		require.Equal(t, handler.Deleted{Audit: 1}, deleted, "redeliveries need no audit")
		require.Equal(t, 1, stored())
		var requests int64
		require.NoError(t, d.DB.Model(&models.Request{}).Count(&requests).Error)
		require.EqualValues(t, 1, requests, "the one that is older than 8 days is deleted")
		require.Zero(t, c.Health(), "runs by hand say so by themselves")

		record(t, d, now, at(1, inboxtest.Noon.Add(time.Hour)))
		deleted, err = c.Clean(t.Context())
		require.NoError(t, err)
		require.Zero(t, deleted, "a redelivery of the message may have come an hour later")
		record(t, d, now, at(1, inboxtest.Noon.Add(time.Hour+time.Microsecond)))
		deleted, err = c.Clean(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted.Messages)
	})
}

// TestMessagesDoNotWaitForInlineChannels proves contract 6.5: partitions of Inline channels hold
// markers back, and nothing else.
func TestMessagesDoNotWaitForInlineChannels(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c, clock, _ := cleaner(t, d, 1, func(cfg *cleanup.Config) { cfg.Options.SweepMarkers = true })
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_markers (message_id, handler_key, namespace, message_type, processed_at, expires_at)
			VALUES ('m', 'a', '', '', ?, ?)`, inboxtest.Noon, inboxtest.Noon.Add(time.Hour+time.Second))
		inline := at(0, inboxtest.Noon.Add(time.Hour))
		inline.Inline = true
		record(t, d, clock.Now(), inline)
		deleted, err := c.Clean(t.Context())
		require.NoError(t, err)
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1}, deleted)
		later := inboxtest.Noon.Add(time.Hour + 2*time.Second)
		inline.CaughtUpAt = &later
		record(t, d, clock.Now(), inline)
		deleted, err = c.Clean(t.Context())
		require.NoError(t, err)
		require.Equal(t, handler.Deleted{Markers: 1}, deleted)
	})
}

// TestRunEndsWhenAPartitionIsAdded proves contract 6.5 for partitions that come during a run.
func TestRunEndsWhenAPartitionIsAdded(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c, clock, stored := cleaner(t, d, 4, func(cfg *cleanup.Config) {
			cfg.Options.CleanupBatchSize = 2
			cfg.Archive = func(context.Context, []cleanup.Archived) error {
				record(t, d, inboxtest.Noon, at(0, time.Time{}))
				return nil
			}
		})
		_, err := c.Clean(t.Context())
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, err, &waiting)
		require.Equal(t, 4, stored())
		record(t, d, clock.Now(), at(0, clock.Now()))
		_, err = c.Clean(t.Context())
		require.NoError(t, err)
		require.Zero(t, stored())
	})
}

// TestRemovedConsumerIsForgottenAfterSevenDaysOfWork proves contract 6.5: a removed channel, group or
// topic does not hold cleanup back forever. An application that did not run at all is waited for.
func TestRemovedConsumerIsForgottenAfterSevenDaysOfWork(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.WarnLevel)
		c, clock, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) { cfg.Logger = zap.New(core) })
		record(t, d, inboxtest.Noon, at(-1, inboxtest.Noon), at(0, inboxtest.Noon))
		clock.Set(inboxtest.Noon.Add(1000 * time.Hour)) // nothing runs
		kept := func() bool {
			_, err := c.Clean(t.Context())
			require.NoError(t, err)
			return stored() == 1
		}
		require.True(t, kept())
		record(t, d, clock.Now())
		inboxtest.Exec(t, d.DB, `UPDATE inbox_partitions SET caught_up_at = NULL`)
		_, err := c.Clean(t.Context())
		require.ErrorContains(t, err, `without declaring it: "inboxctl forget-topic" ends the waiting`)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_partitions SET caught_up_at = ?`, inboxtest.Noon)
		for range 7 * 24 * 3 { // a worker runs that does not declare the channel
			require.True(t, kept())
			record(t, d, clock.Now())
			clock.Advance(20 * time.Minute)
		}
		record(t, d, clock.Now())
		require.False(t, kept())
		require.Equal(t, 1, logs.FilterMessageSnippet("no worker has declared").Len())
	})
}

// TestBlockedCleanupDegradesHealthAndLogsEachChangeOnce proves contract 6.5 for runs in the
// background, for a partition that has never caught up and for one that is behind.
func TestBlockedCleanupDegradesHealthAndLogsEachChangeOnce(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.DebugLevel)
		var ran atomic.Int64
		c, clock, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval, cfg.Logger = 20*time.Millisecond, zap.New(core)
			cfg.Record = func(context.Context) error { ran.Add(1); return nil }
		})
		count := func(text string) int { return logs.FilterMessageSnippet(text).Len() }
		runs := func() {
			before := ran.Load()
			inboxtest.Eventually(t, func() bool { return ran.Load() >= before+3 }, "it ran")
		}
		record(t, d, clock.Now(), at(0, time.Time{}))
		c.Start()
		t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
		inboxtest.Eventually(t, func() bool { return c.Health().Held != nil }, "it is held")
		runs()
		h := c.Health()
		require.Equal(t, clock.Now(), h.HeldSince)
		require.ErrorContains(t, h.Held, "orders/0 has never been read")
		require.False(t, h.Overdue)
		clock.Advance(time.Minute - time.Microsecond)
		require.False(t, c.Health().Overdue)
		clock.Advance(time.Microsecond)
		require.True(t, c.Health().Overdue)
		runs()
		require.Equal(t, []int{1, 1, 0}, []int{count("cleanup waits"), count("six intervals"), count("no longer waits")})
		require.Equal(t, 1, stored())

		record(t, d, clock.Now(), at(0, clock.Now().Add(-time.Hour)))
		inboxtest.Eventually(t, func() bool { return stored() == 0 }, "it deletes what is old enough")
		inboxtest.Eventually(t, func() bool { return c.Health().HeldSince.Equal(clock.Now().Add(-time.Hour)) }, "it is behind")
		require.True(t, c.Health().Overdue)
		record(t, d, clock.Now(), at(0, clock.Now()))
		inboxtest.Eventually(t, func() bool { return c.Health() == cleanup.Health{} }, "it is healthy")
		require.Equal(t, []int{1, 1, 1}, []int{count("cleanup waits"), count("six intervals"), count("no longer waits")})
	})
}

func TestHealthReportsWhyTheLastRunFailed(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		boom := errors.New("boom")
		var mu sync.Mutex
		failing := true
		c, _, _ := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval = 20 * time.Millisecond
			cfg.Archive = func(context.Context, []cleanup.Archived) error {
				mu.Lock()
				defer mu.Unlock()
				if failing {
					return boom
				}
				return nil
			}
		})
		c.Start()
		t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
		inboxtest.Eventually(t, func() bool { return errors.Is(c.Health().Err, boom) }, "health tells")
		mu.Lock()
		failing = false
		mu.Unlock()
		inboxtest.Eventually(t, func() bool { return c.Health().Err == nil }, "health tells no more")
	})
}

// TestWaitHidesNoError proves contract 6.5: what redeliveries do not need is pruned while cleanup waits, and why that
// fails is logged, in health and returned.
func TestWaitHidesNoError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.ErrorLevel)
		c, clock, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval, cfg.Logger = 20*time.Millisecond, zap.New(core)
			cfg.Options.AuditRetention = time.Hour
		})
		record(t, d, clock.Now(), at(0, time.Time{}))
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_audit RENAME TO away`)
		_, err := c.Clean(t.Context())
		require.ErrorAs(t, err, new(*cleanup.WaitingError))
		require.ErrorContains(t, err, "inbox_audit")

		c.Start()
		t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
		inboxtest.Eventually(t, func() bool { return c.Health().Err != nil }, "health reports the error")
		require.NotErrorAs(t, c.Health().Err, new(*cleanup.WaitingError), "which is no failure")
		require.ErrorAs(t, c.Health().Held, new(*cleanup.WaitingError))
		require.NotZero(t, logs.FilterMessageSnippet("cleanup failed").Len())
		inboxtest.Exec(t, d.DB, `ALTER TABLE away RENAME TO inbox_audit`)
		inboxtest.Eventually(t, func() bool { return c.Health().Err == nil }, "it is over")
		require.ErrorAs(t, c.Health().Held, new(*cleanup.WaitingError))
		require.Equal(t, 1, stored())
	})
}

// TestCleanerWithWrongClockReportsWaitAfterSixIntervals proves contract 3.5, 6.5: how far a partition is behind is
// measured by one clock.
func TestCleanerWithWrongClockReportsWaitAfterSixIntervals(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		for _, wrong := range []time.Duration{-time.Hour, time.Hour} {
			core, logs := observer.New(zap.WarnLevel)
			c, _, _ := cleaner(t, d, 0, func(cfg *cleanup.Config) {
				cfg.Options.CleanupInterval, cfg.Clock = 20*time.Millisecond, clock.Offset(wrong)
				cfg.Logger = zap.New(core)
				var err error
				cfg.Store, err = stores.New(d.DB, models.Naming{}, store.Options{})
				require.NoError(t, err)
			})
			record(t, d, time.Now(), at(0, time.Now().Add(-2*time.Minute)))
			c.Start()
			inboxtest.Eventually(t, func() bool { return c.Health().Held != nil }, "it is behind")
			require.True(t, c.Health().Overdue)
			require.WithinDuration(t, time.Now().Add(-2*time.Minute), c.Health().HeldSince, time.Minute)
			require.NoError(t, c.Stop(context.Background()))
			require.Equal(t, 1, logs.FilterMessageSnippet("six intervals").Len())
		}
	})
}

// Otherwise two runs would clean at once, and a program that closes the database after Stop would
// close it during a run.
func TestEveryStopAndStartWaitsForTheCurrentRun(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release := make(chan struct{}, 100), make(chan struct{})
		c, _, _ := cleaner(t, d, 0, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval = time.Millisecond
			cfg.Record = func(context.Context) error { // ignores its context
				entered <- struct{}{}
				<-release
				return nil
			}
		})
		c.Start()
		inboxtest.Receive(t, entered, "the first run")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			require.ErrorIs(t, c.Stop(ended), context.Canceled, "the run is still under way")
		}
		c.Start()
		require.Never(t, func() bool {
			return len(entered) > 0
		}, 50*time.Millisecond, time.Millisecond, "a second run beside the first")
		close(release)
		inboxtest.Receive(t, entered, "the second run")
		require.NoError(t, c.Stop(t.Context()))
		require.Zero(t, c.Health(), "it starts again")
	})
}
