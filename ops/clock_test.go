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

// TestAllUntilNowIsAllOnEveryClock proves contract 3.5: an action without an end takes what there is now, by the
// database's clock, whatever the clocks of the accepting process and of the operator show.
func TestAllUntilNowIsAllOnEveryClock(t *testing.T) {
	for name, clocks := range map[string]struct{ accepts, operates time.Duration }{
		"accepted ahead":  {accepts: time.Hour},
		"operated behind": {operates: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				program := func(ahead time.Duration, handlers ...*inbox.HandlerSpec) *inbox.Inbox {
					return inboxtest.New(t, d.Another(t), inbox.Channel("c", inbox.On("t", handlers...)),
						inbox.Configure(func(o *inbox.Options) {
							o.Clock, o.Cleanup.Retention = clock.Offset(ahead), time.Minute
						}))
				}
				does := func(key string) *inbox.HandlerSpec {
					return inboxtest.Do(key, func(context.Context, inboxtest.Bytes) error { return nil })
				}
				inboxtest.Accept(t, program(clocks.accepts, does("mail")), "m")
				ofMachine, err := stores.New(d.DB, models.Naming{}, store.Options{})
				require.NoError(t, err)
				_, err = ofMachine.Accept(t.Context(), store.AcceptBatch{Now: time.Now().Add(clocks.accepts),
					Rejected: []models.RejectedMessage{{Channel: "c", Topic: "c", Timestamp: inboxtest.Noon, Headers: "[]"}}})
				require.NoError(t, err)

				operator, err := program(clocks.operates, does("mail"), does("new")).Ops(patient)
				require.NoError(t, err)
				requested, err := operator.RequestReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
				require.NoError(t, err)
				require.EqualValues(t, 1, requested.Done)
				filled, err := operator.Backfill(t.Context(), ada, "new", time.Now().Add(-3*time.Hour), time.Time{}, ops.Bulk{})
				require.NoError(t, err)
				require.EqualValues(t, 1, filled.Done)
			})
		})
	}
}
