package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

func marker(messageID, handlerKey string) models.Marker {
	return models.Marker{MessageID: messageID, HandlerKey: handlerKey, MessageType: "order.placed", ProcessedAt: noon,
		ExpiresAt: noon.Add(time.Hour)}
}

// addMarker adds a marker in a transaction that is rolled back if end is an error.
func (s *suite) addMarker(m models.Marker, end error) (added bool) {
	s.Helper()
	ended := s.db.Transaction(func(tx *gorm.DB) (err error) {
		added, err = s.store.AddMarkerTx(s.ctx, tx, m, patience)
		require.NoError(s, err)
		return end
	})
	require.ErrorIs(s, ended, end)
	return added
}

var markerTests = []test{
	{"a marker is added once, unchanged, with its transaction", func(s *suite) {
		undone := errors.New("undone")
		has := func(m models.Marker) bool {
			is, err := s.store.HasMarker(s.ctx, m.MessageID, m.HandlerKey, m.Namespace)
			require.NoError(s, err)
			return is
		}
		first := marker("1", "h")
		require.False(s, has(first))
		require.True(s, s.addMarker(first, undone))
		require.False(s, has(first))
		require.True(s, s.addMarker(first, nil))
		require.True(s, has(first))
		again := first
		again.MessageType = "other"
		require.False(s, s.addMarker(again, nil))
		elsewhere := first
		elsewhere.Namespace = "partners"
		for _, other := range []models.Marker{elsewhere, marker("1", "H"), marker("1 ", "h"), marker("2", "h"),
			marker(strings.Repeat("語", 200), strings.Repeat("🙂", 200))} {
			require.False(s, has(other))
			require.True(s, s.addMarker(other, nil))
			require.True(s, has(other))
		}
		var stored models.Marker
		require.NoError(s, s.db.Take(&stored, "message_id = '1' AND handler_key = 'h' AND namespace = ''").Error)
		require.Equal(s, "order.placed", stored.MessageType)
		require.True(s, stored.ProcessedAt.Equal(noon), stored.ProcessedAt)
		require.True(s, stored.ExpiresAt.Equal(noon.Add(time.Hour)), stored.ExpiresAt)
	}},
	{"a marker twice in one transaction is added once", func(s *suite) {
		require.NoError(s, s.db.Transaction(func(tx *gorm.DB) error {
			for _, expected := range []bool{true, false} {
				added, err := s.store.AddMarkerTx(s.ctx, tx, marker("1", "h"), patience)
				require.NoError(s, err)
				require.Equal(s, expected, added)
			}
			return nil
		}))
	}},
	{"a marker that cannot be stored is refused and leaves the transaction", func(s *suite) {
		long := strings.Repeat("x", 256)
		require.NoError(s, s.db.Transaction(func(tx *gorm.DB) error {
			for _, m := range []models.Marker{marker("", "h"), marker("1", ""), marker(long, "h"), marker("1", long),
				marker("\xff", "h"), {MessageID: "1", HandlerKey: "h", MessageType: long},
				{MessageID: "1", HandlerKey: "h", Namespace: long}} {
				_, err := s.store.AddMarkerTx(s.ctx, tx, m, patience)
				require.ErrorIs(s, err, store.ErrUnstorable)
			}
			_, err := s.store.AddMarkerTx(s.ctx, tx, marker("1", "h"), patience)
			return err
		}))
		_, err := s.store.AddMarkerTx(s.ctx, s.db, marker("2", "h"), patience)
		require.ErrorIs(s, err, store.ErrNoTransaction)
	}},
	{"the wait for an uncommitted marker ignores the session's lock_timeout", func(s *suite) {
		if s.onSQLite("SQLite waits for the file, before the marker") {
			return
		}
		first := s.begin()
		_, err := s.store.AddMarkerTx(s.ctx, first, marker("1", "h"), patience)
		require.NoError(s, err)
		second := s.begin()
		if s.isPostgres() {
			require.NoError(s, second.Exec(`SET LOCAL lock_timeout = '1ms'`).Error)
		}
		began := time.Now()
		_, err = s.store.AddMarkerTx(s.ctx, second, marker("1", "h"), 200*time.Millisecond)
		require.ErrorIs(s, err, store.ErrMarkerBusy)
		require.GreaterOrEqual(s, time.Since(began), 200*time.Millisecond)
		require.NoError(s, second.Rollback().Error)
		if !s.isPostgres() {
			return
		}
		second = s.begin()
		require.NoError(s, second.Exec(`SET LOCAL lock_timeout = '1ms'`).Error)
		added, err := s.store.AddMarkerTx(s.ctx, second, marker("2", "h"), patience)
		require.NoError(s, err)
		require.True(s, added)
		var setting string
		require.NoError(s, second.Raw(`SHOW lock_timeout`).Scan(&setting).Error)
		require.Equal(s, "1ms", setting)
	}},
	{"a marker that came after the snapshot is a serialization failure", func(s *suite) {
		if d, err := dialects.Of(s.db); err != nil || d.RefusedIsolation(sql.LevelRepeatableRead) != "" {
			s.Log("each statement has the newest snapshot")
			return
		}
		tx := s.db.WithContext(s.ctx).Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(s, tx.Exec(`SELECT 1`).Error)
		s.Cleanup(func() { tx.Rollback() })
		require.True(s, s.addMarker(marker("1", "h"), nil))
		added, err := s.store.AddMarkerTx(s.ctx, tx, marker("1", "h"), patience)
		// MySQL's statements that write see what is committed, whatever the snapshot.
		require.True(s, store.IsSerialization(err) || !s.isPostgres() && !added, "%v", err)
	}},
}

// fiveSeconds are the times of the rows that the tests of pruning make.
var fiveSeconds = []time.Time{noon, noon.Add(time.Second), noon.Add(2 * time.Second), noon.Add(3 * time.Second),
	noon.Add(4 * time.Second)}

// prunesThree deletes the first three of fiveSeconds in batches of two.
func (s *suite) prunesThree(prune func(ctx context.Context, before time.Time, limit int) (int64, error)) {
	s.Helper()
	for _, expected := range []int64{2, 1, 0} {
		deleted, err := prune(s.ctx, noon.Add(2500*time.Millisecond), 2)
		require.NoError(s, err)
		require.Equal(s, expected, deleted)
	}
}

var pruneTests = []test{
	{"expired markers are deleted in batches, and others stay", func(s *suite) {
		for i, at := range fiveSeconds {
			m := marker(fmt.Sprint(i), "h")
			m.ExpiresAt = at
			require.NoError(s, s.db.Create(&m).Error)
		}
		s.prunesThree(s.store.DeleteMarkers)
		var left []string
		require.NoError(s, s.db.Model(&models.Marker{}).Order("message_id").Pluck("message_id", &left).Error)
		require.Equal(s, []string{"3", "4"}, left)
	}},
	{"old audit rows are deleted in batches, and others stay", func(s *suite) {
		for _, at := range fiveSeconds {
			require.NoError(s, s.db.Create(&models.Audit{ID: uuid.NewString(), Actor: "a", Action: "retry",
				OccurredAt: at}).Error)
		}
		s.prunesThree(s.store.DeleteAudit)
		var left []models.Audit
		require.NoError(s, s.db.Order("occurred_at").Find(&left).Error)
		require.Len(s, left, 2)
		require.True(s, left[0].OccurredAt.Equal(fiveSeconds[3]))
	}},
	{"old rejected messages are deleted in batches, and others stay", func(s *suite) {
		for i, at := range fiveSeconds {
			r := rejection(int64(i))
			r.ID, r.RejectedAt = uuid.NewString(), at
			require.NoError(s, s.db.Create(r).Error)
		}
		s.prunesThree(s.store.DeleteRejected)
		var left []int64
		require.NoError(s, s.db.Model(&models.RejectedMessage{}).Order("record_offset").Pluck("record_offset", &left).Error)
		require.Equal(s, []int64{3, 4}, left)
	}},
	{"a row that another transaction has locked is passed over", func(s *suite) {
		if s.onSQLite("SQLite locks no rows") {
			return
		}
		for _, id := range []string{"1", "2"} {
			require.NoError(s, s.db.Create(&models.Marker{MessageID: id, HandlerKey: "h", ProcessedAt: noon,
				ExpiresAt: noon}).Error)
		}
		tx := s.begin()
		s.lock(tx, "inbox_markers", "message_id = '1'")
		deleted, err := s.store.DeleteMarkers(s.ctx, cutoff, 10)
		require.NoError(s, err)
		require.EqualValues(s, 1, deleted)
	}},
	{"a marker of the same message that is not committed yet is not waited for", func(s *suite) {
		if s.onSQLite("SQLite has one writer") {
			return
		}
		expired := make([]models.Marker, 50)
		for i := range expired {
			expired[i] = models.Marker{MessageID: fmt.Sprint(i), HandlerKey: "h", ProcessedAt: noon, ExpiresAt: noon}
		}
		fresh := models.Marker{MessageID: "1", HandlerKey: "i", ProcessedAt: noon, ExpiresAt: cutoff.Add(time.Hour)}
		require.NoError(s, s.db.Create(&expired).Error)
		tx := s.begin()
		require.NoError(s, tx.Create(&fresh).Error)
		soon, cancel := context.WithTimeout(s.ctx, patience/2)
		defer cancel()
		deleted, err := s.store.DeleteMarkers(soon, cutoff, 10)
		require.NoError(s, err)
		require.EqualValues(s, 10, deleted)
	}},
}
