package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// load loads everything that a request finds, and expects all of it to fit.
func (s *suite) load(request store.CleanupRequest) []store.ExpiredMessage {
	s.Helper()
	found, err := s.store.Expired(s.ctx, request)
	require.NoError(s, err)
	loaded, taken, err := s.store.LoadExpired(s.ctx, request, found.MessageNumbers, 1<<30)
	require.NoError(s, err)
	require.Equal(s, len(found.MessageNumbers), taken)
	return loaded
}

func (s *suite) deleteExpired(loaded []store.ExpiredMessage) store.CleanupResult {
	s.Helper()
	result, err := s.store.DeleteExpired(s.ctx, loaded)
	require.NoError(s, err)
	return result
}

// described formats what was loaded as "message: status status", with a star after messages that
// are deleted.
func described(loaded []store.ExpiredMessage) []string {
	var all []string
	for _, m := range loaded {
		text := m.Message.ID
		if !m.Stays {
			text += "*"
		}
		for _, status := range m.Statuses {
			text += " " + status.HandlerKey
		}
		all = append(all, text)
	}
	return all
}

var archiveTests = []test{
	{"Expired lists the messages of which Cleanup would delete something, and deletes nothing", func(s *suite) {
		for _, m := range []store.NewMessage{
			message("m1", "old"), message("m2", "pending"), message("m3", "old", "poisoned"), message("m4"),
			message("m5", "young"), message("m6", "discarded", "superseded"),
		} {
			s.accept(m)
			for _, h := range m.Handlers {
				s.bring(h.HandlerKey, m.ID)
			}
		}
		request := store.CleanupRequest{Cutoff: cutoff, Limit: 4}
		found, err := s.store.Expired(s.ctx, request)
		require.NoError(s, err)
		require.Equal(s, store.ExpiredBatch{MessageNumbers: s.numbers("m1", "m3", "m4"),
			Next: store.CleanupCursor{ReceivedAt: noon, MessageNumber: s.numbers("m4")[0]}}, found)
		request.After = found.Next
		found, err = s.store.Expired(s.ctx, request)
		require.NoError(s, err)
		require.Equal(s, store.ExpiredBatch{MessageNumbers: s.numbers("m6"),
			Next: store.CleanupCursor{ReceivedAt: noon, MessageNumber: s.numbers("m6")[0]}, Done: true}, found)
		require.Len(s, s.messageIDs(), 6)

		request.After, request.Limit = store.CleanupCursor{}, 10
		require.Equal(s, []string{"m1* old", "m3 old", "m4*", "m6* discarded superseded"}, described(s.load(request)))
		own := request
		own.HandlerCutoffs = []store.HandlerCutoff{{HandlerKey: "old"}, {HandlerKey: "young", Cutoff: cutoff.Add(time.Hour)}}
		require.Equal(s, []string{"m4*", "m5* young", "m6* discarded superseded"}, described(s.load(own)))
	}},
	{"what is loaded equals the rows", func(s *suite) {
		m := message("m1", "old")
		m.OrderingKey = []byte{}
		m.Content = []byte{0, 255}
		s.accept(m)
		row := s.status("m1", "old")
		text := "boom"
		s.settle(store.Settlement{StatusID: row.ID, HandlerKey: row.HandlerKey, Version: int64(row.Version),
			ErrorCount: 2, AbandonedCount: 1,
			LastError: &text, FailedAt: noon, Poisoned: true})
		require.NoError(s, s.db.Exec(`UPDATE inbox_handler_statuses SET is_poisoned = false`).Error)
		s.complete(noon, s.claimAs(s.worker("old"), noon, 1, "old")...)
		require.NoError(s, s.db.Exec(`UPDATE inbox_handler_statuses SET lane_handler = 1, lane_key = -2`).Error)
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 1})
		require.Len(s, loaded, 1)
		var stored models.Message
		require.NoError(s, s.db.Take(&stored).Error)
		stored.ReceivedAt = stored.ReceivedAt.UTC()
		stored.OrderingKey = []byte{} // some drivers read it as nil
		require.Equal(s, stored, loaded[0].Message)
		require.Len(s, loaded[0].Statuses, 1)
		got, want := loaded[0].Statuses[0], s.status("m1", "old")
		require.True(s, want.CompletedAt.Equal(*got.CompletedAt))
		require.True(s, want.CreatedAt.Equal(got.CreatedAt))
		require.True(s, want.PoisonedAt.Equal(*got.PoisonedAt))
		got.CompletedAt, got.CreatedAt, got.PoisonedAt = want.CompletedAt, want.CreatedAt, want.PoisonedAt
		require.Equal(s, want, got)
	}},
	{"a load is bounded by bytes, and a message larger than that is loaded alone", func(s *suite) {
		var numbers []int64
		for i, size := range []int{10, 10, 500, 10} {
			m := message(fmt.Sprint("m", i), "old")
			m.Content = []byte(strings.Repeat("x", size))
			s.accept(m)
			s.bring("old", m.ID)
			numbers = append(numbers, s.numbers(m.ID)...)
		}
		request := store.CleanupRequest{Cutoff: cutoff, Limit: 10}
		for _, expected := range [][]string{{"m0* old", "m1* old"}, {"m2* old"}, {"m3* old"}} {
			loaded, taken, err := s.store.LoadExpired(s.ctx, request, numbers, 60)
			require.NoError(s, err)
			require.Equal(s, len(expected), taken)
			require.Equal(s, expected, described(loaded))
			numbers = numbers[taken:]
		}
		require.Empty(s, numbers)
	}},
	{"DeleteExpired deletes what was loaded and nothing else", func(s *suite) {
		s.accept(message("m1", "old"), message("m2", "old", "pending"), message("m3"), message("m4", "old"))
		s.bring("old", "m1")
		s.bring("old", "m2")
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		require.Equal(s, []string{"m1* old", "m2 old", "m3*"}, described(loaded))
		s.bring("old", "m4")
		result := s.deleteExpired(loaded)
		require.Equal(s, store.CleanupResult{Messages: 2, Statuses: 2}, result)
		require.Equal(s, []string{"m2", "m4"}, s.messageIDs())
		require.ElementsMatch(s, []string{"m2/pending", "m4/old"}, pairs(s.statuses()))
		result = s.deleteExpired(loaded)
		require.Zero(s, result.Messages+result.Statuses)
	}},
	{"a status added after the load keeps its message", func(s *suite) {
		s.accept(message("m1", "old"), message("m2"))
		s.bring("old", "m1")
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		s.acceptAt(cutoff, message("m1", "old", "late"), message("m2", "late"))
		result := s.deleteExpired(loaded)
		require.Equal(s, store.CleanupResult{Statuses: 1, Passed: 2}, result)
		require.Equal(s, []string{"m1", "m2"}, s.messageIDs())
		require.ElementsMatch(s, []string{"m1/late", "m2/late"}, pairs(s.statuses()))
	}},
	{"a status that changed after the load stays, and its message", func(s *suite) {
		s.accept(message("m1", "old"), message("m2", "old"))
		s.bring("old", "m1")
		s.bring("old", "m2")
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		require.NoError(s, s.db.Exec(`UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = 'm1'`).Error)
		// As if another process had cleaned it up and the message had come again.
		require.NoError(s, s.db.Exec(`DELETE FROM inbox_handler_statuses WHERE message_id = 'm2'`).Error)
		require.NoError(s, s.db.Exec(`DELETE FROM inbox_messages WHERE id = 'm2'`).Error)
		s.acceptAt(cutoff, message("m2", "old"))
		result := s.deleteExpired(loaded)
		require.Equal(s, store.CleanupResult{Passed: 2}, result)
		require.Equal(s, []string{"m1/old", "m2/old"}, pairs(s.statuses()))
	}},
	{"a status that was deleted and added again stays, even at the version that was loaded", func(s *suite) {
		s.accept(message("m1", "old", "pending"))
		s.bring("old", "m1")
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		require.NoError(s, s.db.Exec(`DELETE FROM inbox_handler_statuses WHERE handler_key = 'old'`).Error)
		s.acceptAt(cutoff, message("m1", "old", "pending"))
		s.bring("old", "m1")
		require.Equal(s, loaded[0].Statuses[0].Version, s.status("m1", "old").Version)
		require.Zero(s, s.deleteExpired(loaded))
		require.ElementsMatch(s, []string{"m1/old", "m1/pending"}, pairs(s.statuses()))
	}},
	{"a message that an open accept has locked is not deleted", func(s *suite) {
		s.accept(message("m1", "old"))
		s.bring("old", "m1")
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		s.deleteBesideAccept(func() error {
			_, err := s.store.DeleteExpired(s.ctx, loaded)
			return err
		})
	}},
	{"thousands of loaded statuses are deleted by one call", func(s *suite) {
		s.accept(messages(500, "a", "b", "c", "d")...)
		s.complete(noon, s.claim(noon, 500, "a", "b", "c", "d")...)
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 500})
		result := s.deleteExpired(loaded)
		require.Equal(s, store.CleanupResult{Messages: 500, Statuses: 2000}, result)
	}},
}
