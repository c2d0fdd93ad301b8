package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// messagesFor returns messages of the channel "shop" for one handler.
func messagesFor(handler string, ids ...string) (all []store.NewMessage) {
	for _, id := range ids {
		all = append(all, store.NewMessage{
			Message:  models.Message{ID: id, Namespace: "shop", Type: "order", Source: "/shop", Content: []byte("{}"), SerializedProperties: "{}"},
			Handlers: []store.NewStatus{{HandlerKey: handler}}})
	}
	return all
}

// TestStatementsWaitForNoOtherRowOfASmallInbox runs what changes rows by their keys on tables of some fifty rows, which
// a plan may rather scan. Each table has a row that another transaction has inserted or locked and not committed.
func TestStatementsWaitForNoOtherRowOfASmallInbox(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		checkStatementsWaitForNoOtherRowOfASmallInbox(t, db, st)
	})
}

// TestStatementsWaitForNoOtherRowOfSmallPartitions does the same in the partitioned layout.
func TestStatementsWaitForNoOtherRowOfSmallPartitions(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		db, st := storetest.MigratedMySQLKept(t, openOn(t, variable))
		checkStatementsWaitForNoOtherRowOfASmallInbox(t, db, st)
	})
}

func checkStatementsWaitForNoOtherRowOfASmallInbox(t *testing.T, db *gorm.DB, st store.Store) {
	const rows = 50
	ids, workers := make([]string, rows), make([]string, rows)
	for i := range ids {
		ids[i], workers[i] = fmt.Sprintf("m%02d", i), uuid.NewString()
		worker := store.Worker{ID: workers[i], Host: "h", HandlerKeys: []string{"mail"}}
		require.NoError(t, st.Heartbeat(t.Context(), worker, loaded))
		require.NoError(t, st.StopWorker(t.Context(), workers[i], loaded))
		require.NoError(t, db.Create(&models.Marker{MessageID: ids[i], HandlerKey: "mail", ProcessedAt: loaded, ExpiresAt: loaded}).Error)
		require.NoError(t, db.Create(&models.RejectedMessage{ID: uuid.NewString(), Channel: "c", Topic: "t", Offset: int64(i), RejectedAt: loaded,
			Timestamp: loaded}).Error)
	}
	_, err := st.Accept(t.Context(), store.AcceptBatch{Now: loaded, Messages: messagesFor("mail", append(ids, "z-locked")...)})
	require.NoError(t, err)

	// The row "z-locked" exists and is in use, as one that a handler completes in its transaction.
	held := db.Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.NoError(t, held.Error)
	t.Cleanup(func() { held.Rollback() })
	var status []models.HandlerStatus
	require.NoError(t, held.Raw(`SELECT * FROM inbox_handler_statuses WHERE message_number = (SELECT number FROM inbox_messages WHERE id = 'z-locked')
		AND handler_key = 'mail' FOR UPDATE`).Scan(&status).Error)
	require.Len(t, status, 1)
	inUse := store.Completion{StatusID: status[0].ID, Version: int64(status[0].Version), Outcome: models.OutcomeProcessed}
	// The others are new.
	_, err = st.AcceptTx(t.Context(), held, store.AcceptBatch{Now: loaded, Messages: messagesFor("mail", "new")})
	require.NoError(t, err)
	require.NoError(t, held.Create(&models.Marker{MessageID: "new", HandlerKey: "mail", ProcessedAt: loaded, ExpiresAt: loaded.Add(time.Hour)}).Error)
	require.NoError(t, held.Create(&models.RejectedMessage{ID: uuid.NewString(), Channel: "c", Topic: "t", Offset: rows, RejectedAt: loaded.Add(time.Hour),
		Timestamp: loaded}).Error)
	for _, table := range []string{"workers", "worker_locks"} {
		columns := "id"
		values := "'new'"
		if table == "workers" {
			columns += ", host, pid, handler_keys, started_at, heartbeat_at, health, consumers, database_role"
			values += ", 'h', 1, '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[]', '[]', ''"
		}
		require.NoError(t, held.Exec(`INSERT INTO inbox_`+table+` (`+columns+`) VALUES (`+values+`)`).Error)
	}

	later := loaded.Add(time.Minute)
	var claims []store.Claim
	claim := func(ctx context.Context, now time.Time) error {
		got, err := st.Claim(ctx, store.ClaimRequest{Now: now, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 2 * rows}}})
		claims = got.Claims
		return err
	}
	all := func(applied []bool, err error) error {
		require.NoError(t, err)
		require.Len(t, applied, rows+1)
		require.Equal(t, []bool{true, false}, []bool{applied[0], applied[rows]}, "all but the row in use")
		return nil
	}
	cleanup := store.CleanupRequest{Cutoff: later, Until: later, Limit: 30, Live: true}
	for _, each := range []struct {
		name string
		run  func(ctx context.Context) error
	}{
		{"Claim", func(ctx context.Context) error { return claim(ctx, loaded) }},
		{"Settle", func(ctx context.Context) error {
			require.Len(t, claims, rows)
			settlements := make([]store.Settlement, 0, rows+1)
			for _, c := range claims {
				settlements = append(settlements, store.Settlement{StatusID: c.StatusID, Version: c.Version, FailedAt: loaded,
					NextAttemptAt: &loaded})
			}
			last := store.Settlement{StatusID: inUse.StatusID, Version: inUse.Version, FailedAt: loaded}
			settlements = append(settlements, last)
			return all(st.Settle(ctx, settlements, store.SkipLocked))
		}},
		{"Claim again", func(ctx context.Context) error { return claim(ctx, later) }},
		{"Complete", func(ctx context.Context) error {
			require.Len(t, claims, rows)
			completions := make([]store.Completion, 0, rows+1)
			for _, c := range claims {
				completions = append(completions, store.Completion{StatusID: c.StatusID, Version: c.Version,
					Outcome: models.OutcomeProcessed})
			}
			completions = append(completions, inUse)
			return all(st.Complete(ctx, completions, loaded, store.SkipLocked))
		}},
		{"Cleanup", func(ctx context.Context) error {
			done, err := st.Cleanup(ctx, cleanup)
			require.EqualValues(t, cleanup.Limit, done.Messages)
			return err
		}},
		{"Archive", func(ctx context.Context) error {
			found, err := st.Expired(ctx, cleanup)
			require.NoError(t, err)
			expired, _, err := st.LoadExpired(ctx, cleanup, found.MessageNumbers, 1<<20)
			require.NoError(t, err)
			done, err := st.DeleteExpired(ctx, expired)
			require.EqualValues(t, rows-cleanup.Limit, done.Messages)
			return err
		}},
		{"DeleteMarkers", func(ctx context.Context) error {
			deleted, err := st.DeleteMarkers(ctx, later, 2*rows)
			require.EqualValues(t, rows, deleted)
			return err
		}},
		{"DeleteRejected", func(ctx context.Context) error {
			deleted, err := st.DeleteRejected(ctx, later, 2*rows)
			require.EqualValues(t, rows, deleted)
			return err
		}},
		{"DeleteWorkers", func(ctx context.Context) error {
			deleted, err := st.DeleteWorkers(ctx, workers)
			require.EqualValues(t, rows, deleted)
			return err
		}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience/4)
		require.NoError(t, each.run(ctx), each.name)
		cancel()
	}
}

// TestCompletionLocksRowsInTheOrderOfTheirIDs completes two rows, of which the first is in use. Another order would
// lock the second one meanwhile, and handlers that complete the same rows in their transactions would deadlock.
func TestCompletionLocksRowsInTheOrderOfTheirIDs(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		_, err := st.Accept(t.Context(), batchOf("m1", "m2"))
		require.NoError(t, err)
		both := []store.KeyLimit{{HandlerKey: "mail", Limit: 2}}
		claimed, err := st.Claim(t.Context(), store.ClaimRequest{Now: loaded, Limits: both})
		require.NoError(t, err)
		require.Len(t, claimed.Claims, 2)
		completions := make([]store.Completion, 2)
		for i, c := range claimed.Claims {
			completions[1-i] = store.Completion{StatusID: c.StatusID, Version: c.Version,
				Outcome: models.OutcomeProcessed}
		}
		last, first := completions[0].StatusID, completions[1].StatusID
		require.Less(t, first, last)
		holder := db.Begin()
		defer holder.Rollback()
		require.NoError(t, new(server).Lock(holder, "inbox_handler_statuses", "id = '"+first+"'"))
		completed := make(chan error, 1)
		go func() {
			_, err := st.Complete(t.Context(), completions, loaded, store.AwaitLocked)
			completed <- err
		}()
		waitForLock(t, db)
		var free []string
		lock := `SELECT id FROM inbox_handler_statuses WHERE id = ? FOR UPDATE NOWAIT`
		require.NoError(t, db.Raw(lock, last).Scan(&free).Error)
		require.Equal(t, []string{last}, free)
		require.NoError(t, holder.Rollback().Error)
		require.NoError(t, <-completed)
	})
}

// TestOpenClaimLeavesTheRowsAfterItsOwnToOthers keeps a claim open that has taken half of the rows. A plan that sorts
// rows would have locked all of them.
func TestOpenClaimLeavesTheRowsAfterItsOwnToOthers(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		checkOpenClaimLeavesTheRowsAfterItsOwnToOthers(t, db, st)
	})
}

// TestOpenClaimLeavesTheRowsAfterItsOwnInPartitions does the same in the partitioned layout.
func TestOpenClaimLeavesTheRowsAfterItsOwnInPartitions(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		db, st := storetest.MigratedMySQLSpread(t, openOn(t, variable))
		checkOpenClaimLeavesTheRowsAfterItsOwnToOthers(t, db, st)
	})
}

func checkOpenClaimLeavesTheRowsAfterItsOwnToOthers(t *testing.T, db *gorm.DB, st store.Store) {
	const each = 100
	var ids []string
	for i := range 2 * each {
		ids = append(ids, fmt.Sprintf("m%03d", i))
	}
	_, err := st.Accept(t.Context(), batchOf(ids...))
	require.NoError(t, err)
	require.NoError(t, db.Exec(`ANALYZE TABLE inbox_handler_statuses`).Error)
	release, err := new(server).Hold(db, storetest.Event{Statement: "UPDATE", Table: "inbox_handler_statuses"})
	require.NoError(t, err)
	defer func() { require.NoError(t, release()) }()
	claim := func() <-chan []store.Claim {
		claimed := make(chan []store.Claim, 1)
		go func() {
			got, err := st.Claim(t.Context(), store.ClaimRequest{Now: loaded,
				Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: each}}})
			if err == nil {
				claimed <- got.Claims
			}
			close(claimed)
		}()
		return claimed
	}
	first := claim()
	waitForLock(t, db)
	second := claim()
	waitForLocks(t, db, 2, second)
	require.NoError(t, release())
	var claimed []string
	for _, claims := range []<-chan []store.Claim{first, second} {
		for _, c := range inboxtest.Receive(t, claims, "a claim") {
			claimed = append(claimed, c.MessageID)
		}
	}
	require.Equal(t, ids, claimed)
}
