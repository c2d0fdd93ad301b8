package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestStaleStatusIsNotSavedOverANewerVersion(t *testing.T) {
	onEach(t, checkStaleStatusIsNotSavedOverANewerVersion)
}

func checkStaleStatusIsNotSavedOverANewerVersion(t *testing.T, open opener) {
	db, st := storetest.Migrated(t, open(t))
	_, err := st.Accept(t.Context(), store.AcceptBatch{Now: loaded, Messages: []store.NewMessage{{
		Message:  models.Message{ID: "m", Namespace: "shop", Type: "order", Content: []byte("{}"), SerializedProperties: "{}"},
		Handlers: []store.NewStatus{{HandlerKey: "mail"}}}}})
	require.NoError(t, err)
	var first, stale models.HandlerStatus
	require.NoError(t, db.Take(&first).Error)
	require.NoError(t, db.Take(&stale).Error)
	first.ErrorCount, stale.ErrorCount = 1, 2
	saved := db.Save(&first)
	require.NoError(t, saved.Error)
	require.EqualValues(t, 1, saved.RowsAffected)
	unread := models.HandlerStatus{ID: first.ID, MessageNumber: first.MessageNumber, MessageID: "m", HandlerKey: "mail",
		ErrorCount: 3, CreatedAt: loaded}
	for _, row := range []*models.HandlerStatus{&stale, &first, &unread} {
		_ = db.Save(row).Error
		var now models.HandlerStatus
		require.NoError(t, db.Take(&now).Error)
		require.Equal(t, 1, now.ErrorCount)
		require.EqualValues(t, 2, now.Version)
	}
	require.NoError(t, db.Take(&first).Error)
	first.ErrorCount = 4
	require.EqualValues(t, 1, db.Save(&first).RowsAffected, "once it is read again")
}

// TestStatusThatIsChangedMeanwhileIsNotSaved saves a slice, which is an INSERT that may become an update.
func TestStatusThatIsChangedMeanwhileIsNotSaved(t *testing.T) {
	onEach(t, func(t *testing.T, open opener) {
		db, st := storetest.Migrated(t, open(t))
		_, err := st.Accept(t.Context(), batchOf("m"))
		require.NoError(t, err)
		var read []models.HandlerStatus
		require.NoError(t, db.Find(&read).Error)
		level := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
		other, own := db.Begin(level), db.Begin(level)
		t.Cleanup(func() { own.Rollback() })
		require.NoError(t, other.Model(&models.HandlerStatus{}).Where("true").Update("error_count", 1).Error)
		saved := make(chan int64, 1)
		go func() {
			read[0].ErrorCount = 2
			saved <- own.Save(&read).RowsAffected
		}()
		var waits server
		require.Eventually(t, func() bool {
			waiting, err := waits.Waiting(db)
			return err == nil && waiting == 1
		}, testenv.Patience, 10*time.Millisecond)
		require.NoError(t, other.Commit().Error)
		require.Zero(t, <-saved)
		require.NoError(t, own.Commit().Error)
		var now models.HandlerStatus
		require.NoError(t, db.Take(&now).Error)
		require.Equal(t, 1, now.ErrorCount)
	})
}
