package ops_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// wronglyClocked returns a function that makes a program whose clock is ahead, with handlers that keep their rows for
// an hour.
func wronglyClocked(t *testing.T, d *inboxtest.Database) func(ahead time.Duration, handlers ...string) *inbox.Inbox {
	return func(ahead time.Duration, handlers ...string) *inbox.Inbox {
		var specs []*inbox.HandlerSpec
		for _, key := range handlers {
			specs = append(specs, inboxtest.Do(key, func(context.Context, inboxtest.Bytes) error { return nil }))
		}
		configured := inbox.Configure(func(o *inbox.Options) {
			o.Clock, o.Cleanup.Retention = clock.Offset(ahead), time.Hour
		})
		return inboxtest.New(t, d.Another(t), configured, inbox.Channel("c", inbox.On("t", specs...)))
	}
}

// TestAllUntilNowIsAllOnEveryClock proves contract 3.5: an action without an end takes what there is now, by the
// database's clock, whatever the clocks of the accepting process and of the operator show.
func TestAllUntilNowIsAllOnEveryClock(t *testing.T) {
	for name, clocks := range map[string]struct{ accepts, operates time.Duration }{
		"accepted ahead":  {accepts: time.Hour},
		"operated behind": {operates: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				program := wronglyClocked(t, d)
				inboxtest.Accept(t, program(clocks.accepts, "mail"), "m")
				ofMachine, err := stores.New(d.DB, models.Naming{}, store.Options{})
				require.NoError(t, err)
				_, err = ofMachine.Accept(t.Context(), store.AcceptBatch{Now: time.Now().Add(clocks.accepts),
					Rejected: []models.RejectedMessage{{Channel: "c", Topic: "c", Timestamp: inboxtest.Noon, Headers: "[]"}}})
				require.NoError(t, err)

				operator, err := program(clocks.operates, "mail", "new").Ops(patient)
				require.NoError(t, err)
				requested, err := operator.RequestReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
				require.NoError(t, err)
				require.EqualValues(t, 1, requested.Done)
				filled, err := operator.Backfill(t.Context(), ada, "new", time.Now().Add(-3*time.Hour), time.Time{}, ops.Bulk{})
				require.NoError(t, err)
				require.EqualValues(t, 1, filled.Done)
				var wrong int64
				require.NoError(t, d.DB.Table("inbox_audit").
					Where("occurred_at NOT BETWEEN now() - interval '1 minute' AND clock_timestamp()").Count(&wrong).Error)
				require.Zero(t, wrong, "audit rows have the database's time, which their retention goes by")
			})
		})
	}
}

// TestBackfillJudgesAgeByTheDatabasesClock proves contract 3.5, 4.2: a row that the retention has deleted is not
// missing, and a young one is, whatever the operator's clock shows.
func TestBackfillJudgesAgeByTheDatabasesClock(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		program := wronglyClocked(t, d)
		inboxtest.Accept(t, program(0, "mail"), "old", "young")
		inboxtest.Exec(t, d.DB, `UPDATE inbox_messages SET received_at = received_at - interval '2 hours' WHERE id = 'old'`)
		for key, ahead := range map[string]time.Duration{"behind": -2 * time.Hour, "ahead": 2 * time.Hour} {
			operator, err := program(ahead, "mail", key).Ops(patient)
			require.NoError(t, err)
			filled, err := operator.Backfill(t.Context(), ada, key, time.Now().Add(-5*time.Hour), time.Time{}, ops.Bulk{})
			require.NoError(t, err)
			require.EqualValues(t, 1, filled.Done, key)
			var id string
			require.NoError(t, d.DB.Raw(`SELECT message_id FROM inbox_handler_statuses WHERE handler_key = ?`, key).Scan(&id).Error)
			require.Equal(t, "young", id, key)
		}
	})
}
