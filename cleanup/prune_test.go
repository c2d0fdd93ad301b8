package cleanup_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

func count(t *testing.T, db *gorm.DB, model any) int {
	t.Helper()
	var n int64
	require.NoError(t, db.Model(model).Count(&n).Error)
	return int(n)
}

// others stores a marker, an audit row and a rejected message of two ages.
func others(t *testing.T, db *gorm.DB, now time.Time) {
	t.Helper()
	for i, age := range []time.Duration{time.Hour, 3 * time.Hour} {
		id, at := []string{"0192f000-0000-7000-8000-000000000002", "0192f000-0000-7000-8000-000000000001"}[i], now.Add(-age)
		require.NoError(t, db.Create(&models.Marker{MessageID: id, HandlerKey: "h", ProcessedAt: at,
			ExpiresAt: at.Add(2 * time.Hour)}).Error)
		require.NoError(t, db.Create(&models.Audit{ID: id, Actor: "ada", Action: "retry", OccurredAt: at}).Error)
		require.NoError(t, db.Create(&models.RejectedMessage{ID: id, Channel: "c", Topic: "t", Offset: int64(i),
			Timestamp: at, Headers: "[]", Reason: "bad", RejectedAt: at}).Error)
	}
}

func TestMarkersAuditAndRejectedArePrunedOnlyByOption(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		declare := func(opts ...inbox.Option) *inbox.Inbox {
			return inboxtest.New(t, d.DB, append(opts, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
				inboxtest.Handlers(inboxtest.Do("a", byID)))...)
		}
		none := declare(inbox.Configure(func(o *inbox.Options) { o.Cleanup.Retention = time.Millisecond }))
		others(t, d.DB, clock.Now())
		require.Zero(t, clean(t, none))
		left := func() []int {
			return []int{count(t, d.DB, &models.Marker{}), count(t, d.DB, &models.Audit{}),
				count(t, d.DB, &models.RejectedMessage{})}
		}
		require.Equal(t, []int{2, 2, 2}, left())
		require.Equal(t, handler.Deleted{Markers: 1}, clean(t, declare(inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.SweepMarkers = true
		}))))
		require.Equal(t, []int{1, 2, 2}, left())
		require.Equal(t, handler.Deleted{Audit: 1}, clean(t, declare(inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.AuditRetention = 2 * time.Hour
		}))))
		require.Equal(t, []int{1, 1, 2}, left())
		require.Equal(t, handler.Deleted{Rejected: 1}, clean(t, declare(inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.RejectedRetention = 2 * time.Hour
		}))))
		require.Equal(t, []int{1, 1, 1}, left())
		clock.Advance(5 * time.Hour)
		all := declare(inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.SweepMarkers = true
			o.Cleanup.AuditRetention = time.Hour
			o.Cleanup.RejectedRetention = time.Hour
		}))
		require.Equal(t, handler.Deleted{Markers: 1, Audit: 1, Rejected: 1}, clean(t, all))
	})
}

func TestPruningRunsInBatches(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.SweepMarkers = true
			o.Cleanup.CleanupBatchSize = 2
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		for _, id := range []string{"1", "2", "3"} {
			require.NoError(t, d.DB.Create(&models.Marker{MessageID: id, HandlerKey: "h", ProcessedAt: inboxtest.Noon,
				ExpiresAt: time.Now().UTC().Add(-time.Hour)}).Error)
		}
		require.Equal(t, handler.Deleted{Markers: 3}, clean(t, ib))
	})
}

func TestRunningInboxPrunesWithOnlyOneOptionSet(t *testing.T) {
	for name, option := range map[string]inbox.Option{
		"SweepMarkers": inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.SweepMarkers = true
		}), "AuditRetention": inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.AuditRetention = time.Hour
		}),
		"RejectedRetention": inbox.Configure(func(o *inbox.Options) { o.Cleanup.RejectedRetention = time.Hour }),
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), option, inbox.Configure(func(o *inbox.Options) {
					o.Cleanup.CleanupInterval = 50 * time.Millisecond
				}),
					inboxtest.Handlers(inboxtest.Do("a", byID)))
				others(t, d.DB, time.Now().UTC().Add(-10*time.Hour))
				inboxtest.Start(t, ib)
				inboxtest.Eventually(t, func() bool {
					return count(t, d.DB, &models.Marker{})+count(t, d.DB, &models.Audit{})+
						count(t, d.DB, &models.RejectedMessage{}) == 4
				}, "the rows went")
			})
		})
	}
}

func TestRowsOfVanishedWorkersAndLeasesArePruned(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := context.Background()
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		st := inboxtest.Store(t, d.DB)
		id := map[string]string{"stopped": "0192f000-0000-7000-8000-000000000001",
			"released": "0192f000-0000-7000-8000-000000000002",
			"silent":   "0192f000-0000-7000-8000-000000000003", "claims": "0192f000-0000-7000-8000-000000000004",
			"young": "0192f000-0000-7000-8000-000000000005"}
		for _, worker := range id {
			require.NoError(t, st.Heartbeat(ctx, store.Worker{ID: worker, Host: "h"}, clock.Now()))
		}
		inboxtest.Accept(t, ib, "1")
		claimed, err := st.Claim(ctx, store.ClaimRequest{WorkerID: id["claims"], Now: clock.Now(),
			Limits: []store.KeyLimit{{HandlerKey: "a", Limit: 1}}})
		require.NoError(t, err)
		require.Len(t, claimed.Claims, 1)
		clock.Advance(time.Second)
		require.NoError(t, st.StopWorker(ctx, id["stopped"], clock.Now()))
		require.NoError(t, st.MarkReleased(ctx, id["released"], clock.Now()))
		held, err := st.AcquireLease(ctx, "left behind", id["silent"], time.Second, clock.Now())
		require.NoError(t, err)
		require.True(t, held)

		require.Zero(t, clean(t, ib), "no worker has been silent for long")
		// Servers use their own clocks, SQLite the inbox's.
		const long = 8*24*time.Hour + time.Hour
		hours := map[string]string{"postgres": "interval '%d hours'", "mysql": "INTERVAL %d HOUR"}[d.Dialect]
		if hours != "" {
			inboxtest.Exec(t, d.DB, "UPDATE inbox_workers SET heartbeat_at = heartbeat_at - "+fmt.Sprintf(hours, 193)+" WHERE id <> ?",
				id["young"])
			inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET expires_at = expires_at - "+fmt.Sprintf(hours, 25))
		} else {
			clock.Advance(long)
			require.NoError(t, st.Heartbeat(ctx, store.Worker{ID: id["young"], Host: "h"}, clock.Now()))
		}
		require.Equal(t, handler.Deleted{Workers: 4, Leases: 1}, clean(t, ib))
		var left []string
		require.NoError(t, d.DB.Model(&models.Worker{}).Order("id").Pluck("id", &left).Error)
		require.Equal(t, []string{id["young"]}, left)
		require.Equal(t, id["claims"], *inboxtest.Status(t, ib, "1", "a").WorkerID, "a sweep needs no row to recover the claim")
	})
}
