package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// set changes a column of the statuses or messages with a message ID.
func (s *suite) set(table, messageID, column string, value any) {
	s.Helper()
	if at, is := value.(time.Time); is && !s.isServer() {
		value = store.SQLiteTime(at)
	}
	of := map[string]string{"messages": "id", "handler_statuses": "message_id"}[table]
	require.NoError(s, s.db.Exec("UPDATE inbox_"+table+" SET "+column+" = ? WHERE "+of+" = ?", value, messageID).Error)
}

// handlerViewTests cover what operators see of a handler.
var handlerViewTests = []test{
	{"claims are listed with their workers, those claimed longest ago first, and counted by workers that live", func(s *suite) {
		living, dead := s.worker("mail"), uuid.NewString()
		for i, id := range []string{"m1", "m2", "m3", "m4"} {
			s.acceptAt(noon.Add(time.Duration(i)*time.Second), message(id, "mail"))
		}
		s.claimAs(living, noon.Add(time.Minute), 1, "mail")
		s.claimAs("", noon.Add(time.Minute), 1, "mail")
		s.claimAs(living, noon.Add(time.Minute), 1, "mail")
		s.set("handler_statuses", "m3", "worker_id", dead)
		for i, id := range []string{"m1", "m3", "m2"} {
			s.set("handler_statuses", id, "processing_started_at", noon.Add(time.Duration(i)*time.Minute))
		}
		s.set("handler_statuses", "m1", "worker_id", living)
		pool, soon := s.poolOf(s.db), s.statuses()[0].CreatedAt.Add(time.Hour)
		claims, err := s.store.Claims(s.ctx, pool, "mail", 100, 10, soon)
		require.NoError(s, err)
		require.Len(s, claims, 3)
		require.Equal(s, []any{"m1", new(living), noon, "orders"}, []any{claims[0].MessageID, claims[0].WorkerID,
			claims[0].ProcessingStartedAt.UTC(), claims[0].Namespace})
		require.Equal(s, []any{"m3", new(dead)}, []any{claims[1].MessageID, claims[1].WorkerID})
		require.Nil(s, claims[2].WorkerID)
		claims, err = s.store.Claims(s.ctx, pool, "mail", 100, 1, soon)
		require.NoError(s, err)
		require.Len(s, claims, 1)
		claims, err = s.store.Claims(s.ctx, pool, "ship", 100, 10, soon)
		require.NoError(s, err)
		require.Empty(s, claims)

		for orphaned, living := range map[int64][]string{1: {living, uuid.NewString()}, 2: nil} {
			counts, err := s.store.CountOpen(s.ctx, pool, []string{"mail"}, 100, soon, soon, living)
			require.NoError(s, err)
			require.Equal(s, []int64{3, orphaned, 1}, []int64{counts[0].Processing, counts[0].Orphaned, counts[0].Due})
		}
	}},
	{"statuses after poisoned ones of their lanes are counted, marked as waiting or not", func(s *suite) {
		pool := s.poolOf(s.db)
		parked := func(limit int64) []store.ParkedLane {
			lanes, err := s.store.ParkedLanes(s.ctx, pool, "mail", 100, limit)
			require.NoError(s, err)
			return lanes
		}
		s.acceptLane("m1", "m2", "m3", "m4")
		s.accept(ordered("n1", "other", "mail"), ordered("n2", "other", "mail"), message("o1", "mail"))
		heads := s.heads(noon, 10)
		require.Equal(s, []string{"m1/mail", "n1/mail", "o1/mail"}, claimed(heads))
		require.Empty(s, parked(100), "they wait for one that runs")
		s.poison(heads[0])
		s.poison(heads[2])
		lane := store.ParkedLane{Lane: *store.LaneOf("mail", []byte("k")), Poisoned: 1, Waiting: 3}
		require.Equal(s, []store.ParkedLane{lane}, parked(100))
		require.Empty(s, s.heads(noon, 1))
		require.NotEmpty(s, s.waiting())
		require.Equal(s, []store.ParkedLane{lane}, parked(100))
		s.poison(heads[1])
		other := store.ParkedLane{Lane: *store.LaneOf("mail", []byte("other")), Poisoned: 1, Waiting: 1}
		require.Equal(s, []store.ParkedLane{lane, other}, parked(100))
		lane.Waiting, lane.Capped = 2, true
		require.Equal(s, []store.ParkedLane{lane, other}, parked(4))
	}},
	{"recent statuses are those of the latest messages", func(s *suite) {
		pool := s.poolOf(s.db)
		s.accept(message("m0", "ship"), message("m1", "mail", "ship"), message("m2", "mail", "ship"), message("m3", "mail"))
		for i, id := range []string{"m0", "m1", "m2", "m3"} {
			s.set("messages", id, "received_at", noon.Add(time.Duration(i-1)*time.Hour))
		}
		s.end(s.status("m2", "mail"), models.OutcomeProcessed, noon)
		scan := store.RecentScan{HandlerKey: "mail", From: noon.Add(-2 * time.Hour), To: noon.Add(2 * time.Hour), Depth: 10}
		recent, err := s.store.RecentStatuses(s.ctx, pool, scan)
		require.NoError(s, err)
		require.Equal(s, 4, recent.Messages)
		require.WithinDuration(s, noon.Add(-time.Hour), recent.Earliest, 0)
		require.Len(s, recent.Statuses, 3)
		require.Equal(s, models.OutcomeProcessed, recent.Statuses[1].Outcome)
		require.NotNil(s, recent.Statuses[1].CompletedAt)
		scan.Depth, scan.To = 1, noon.Add(time.Hour)
		recent, err = s.store.RecentStatuses(s.ctx, pool, scan)
		require.NoError(s, err)
		require.Equal(s, 1, recent.Messages)
		require.Len(s, recent.Statuses, 1)
		require.NotNil(s, recent.Statuses[0].CompletedAt, "m2's")
		scan.From, scan.To = noon.Add(5*time.Hour), noon.Add(6*time.Hour)
		recent, err = s.store.RecentStatuses(s.ctx, pool, scan)
		require.NoError(s, err)
		require.Equal(s, store.Recent{}, recent)
	}},
	{"a worker's first heartbeat stores its settings", func(s *suite) {
		worker := store.Worker{ID: uuid.NewString(), Host: "a", Settings: `{"worker_timeout":1}`}
		require.NoError(s, s.store.Heartbeat(s.ctx, worker, noon))
		require.NoError(s, s.store.Heartbeat(s.ctx, store.Worker{ID: worker.ID, Host: "a"}, noon))
		s.worker("mail") // has none
		stored, err := s.store.StoredSettings(s.ctx, s.poolOf(s.db), 10)
		require.NoError(s, err)
		require.Equal(s, []store.WorkerSettings{{WorkerID: worker.ID, Settings: worker.Settings}}, stored)
		require.NoError(s, s.store.StopWorker(s.ctx, worker.ID, noon))
		stored, err = s.store.StoredSettings(s.ctx, s.poolOf(s.db), 10)
		require.NoError(s, err)
		require.Empty(s, stored)
	}},
}
