package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/models"
)

var pruneTests = []test{
	{"expired markers go, a batch at a time, and others stay", func(s *suite) {
		for i := range 5 {
			require.NoError(s, s.db.Create(&models.Marker{MessageID: fmt.Sprint(i), HandlerKey: "h", ProcessedAt: noon,
				ExpiresAt: noon.Add(time.Duration(i) * time.Second)}).Error)
		}
		for _, expected := range []int64{2, 1, 0} {
			deleted, err := s.store.DeleteMarkers(s.ctx, noon.Add(2500*time.Millisecond), 2)
			require.NoError(s, err)
			require.Equal(s, expected, deleted)
		}
		var left []string
		require.NoError(s, s.db.Model(&models.Marker{}).Order("message_id").Pluck("message_id", &left).Error)
		require.Equal(s, []string{"3", "4"}, left)
	}},
	{"old audit rows go, a batch at a time, and others stay", func(s *suite) {
		for i := range 5 {
			require.NoError(s, s.db.Create(&models.Audit{ID: fmt.Sprintf("0192f000-0000-7000-8000-00000000000%d", i), Actor: "a",
				Action: "retry", OccurredAt: noon.Add(time.Duration(i) * time.Second)}).Error)
		}
		for _, expected := range []int64{2, 1, 0} {
			deleted, err := s.store.DeleteAudit(s.ctx, noon.Add(2500*time.Millisecond), 2)
			require.NoError(s, err)
			require.Equal(s, expected, deleted)
		}
		var left int64
		require.NoError(s, s.db.Model(&models.Audit{}).Where("occurred_at >= ?",
			noon.Add(2500*time.Millisecond)).Count(&left).Error)
		require.EqualValues(s, 2, left)
	}},
	{"old rejected messages go, a batch at a time, and others stay", func(s *suite) {
		for i := range 5 {
			require.NoError(s, s.db.Create(&models.RejectedMessage{ID: fmt.Sprintf("0192f000-0000-7000-8000-00000000000%d", i),
				Channel: "c", Topic: "t",
				Offset: int64(i), Timestamp: noon, Headers: "[]", Reason: "bad",
				RejectedAt: noon.Add(time.Duration(i) * time.Second)}).Error)
		}
		for _, expected := range []int64{2, 1, 0} {
			deleted, err := s.store.DeleteRejected(s.ctx, noon.Add(2500*time.Millisecond), 2)
			require.NoError(s, err)
			require.Equal(s, expected, deleted)
		}
		var left []int64
		require.NoError(s, s.db.Model(&models.RejectedMessage{}).Order("record_offset").Pluck("record_offset", &left).Error)
		require.Equal(s, []int64{3, 4}, left)
	}},
	{"a row that another transaction uses is passed over", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite locks no rows")
			return
		}
		for _, id := range []string{"1", "2"} {
			require.NoError(s, s.db.Create(&models.Marker{MessageID: id, HandlerKey: "h", ProcessedAt: noon,
				ExpiresAt: noon}).Error)
		}
		tx := s.begin()
		require.NoError(s, tx.Exec(`SELECT FROM inbox_markers WHERE message_id = '1' FOR UPDATE`).Error)
		deleted, err := s.store.DeleteMarkers(s.ctx, cutoff, 10)
		require.NoError(s, err)
		require.EqualValues(s, 1, deleted)
	}},
}
