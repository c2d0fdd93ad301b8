package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

func nothingTx(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }

func worker(id string, keys ...string) store.Worker {
	return store.Worker{ID: id, Host: "elsewhere", PID: 1, HandlerKeys: keys}
}

// heartbeat sends the heartbeat of a worker in another process.
func heartbeat(t *testing.T, d *inboxtest.Database, clock clock.Clock, w store.Worker) error {
	t.Helper()
	return inboxtest.Store(t, d.DB).Heartbeat(context.Background(), w, clock.Now())
}

// claim claims as another process would, for a worker or, if the ID is empty, without one.
func claim(
	t *testing.T, d *inboxtest.Database, clock clock.Clock, workerID string, limit int, keys ...string,
) []store.Claim {
	t.Helper()
	req := store.ClaimRequest{WorkerID: workerID, Now: clock.Now()}
	for _, key := range keys {
		req.Limits = append(req.Limits, store.KeyLimit{HandlerKey: key, Limit: limit})
	}
	claimed, err := inboxtest.Store(t, d.DB).Claim(context.Background(), req)
	require.NoError(t, err)
	require.NotEmpty(t, claimed.Claims)
	return claimed.Claims
}

func completionsOf(claims []store.Claim) (completions []store.Completion) {
	for _, c := range claims {
		completions = append(completions, store.Completion{StatusID: c.StatusID, Version: c.Version,
			Outcome: models.OutcomeProcessed})
	}
	return completions
}

// workers returns all worker rows, oldest first.
func workers(t *testing.T, d *inboxtest.Database) []models.Worker {
	t.Helper()
	var rows []models.Worker
	require.NoError(t, d.DB.Order("started_at, id").Find(&rows).Error)
	return rows
}

// lastBeat returns the time of the newest heartbeat.
func lastBeat(t *testing.T, d *inboxtest.Database) time.Time {
	t.Helper()
	var last time.Time
	for _, w := range workers(t, d) {
		if w.HeartbeatAt.After(last) {
			last = w.HeartbeatAt
		}
	}
	return last
}

var system clock.Clock = clock.System{}
