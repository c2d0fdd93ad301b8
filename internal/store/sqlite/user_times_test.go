package sqlite_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestSQLiteClaimsRescheduledStatuses proves that the models are ordinary GORM models (contract
// 3.4): a time that a user writes through GORM, which a driver may store in a form of its own, does
// not keep a status from being claimed.
func TestSQLiteClaimsRescheduledStatuses(t *testing.T) {
	now := time.Now()
	for name, at := range map[string]time.Time{
		"monotonic clock":             now.Add(-26 * time.Hour),
		"UTC":                         now.UTC().Add(-26 * time.Hour),
		"a zone without abbreviation": now.Add(-26 * time.Hour).In(time.FixedZone("", 4*3600)),
		"a numeric zone":              now.Add(-26 * time.Hour).In(time.FixedZone("-03", -3*3600)),
		"a zone with abbreviation":    now.Add(-26 * time.Hour).In(time.FixedZone("CEST", 2*3600)),
	} {
		t.Run(name, func(t *testing.T) {
			db, s := storetest.Migrated(t, testenv.SQLite(t))
			_, err := s.Accept(t.Context(), store.AcceptBatch{Now: now.Add(-30 * time.Hour), Messages: []store.NewMessage{
				{Message: models.Message{ID: "m1"}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}},
				{Message: models.Message{ID: "m2"}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}},
			}})
			require.NoError(t, err)
			require.NoError(t, db.Model(&models.HandlerStatus{}).Where("message_id = 'm1'").Update("next_attempt_at", at).Error)
			claimed, err := s.Claim(t.Context(), store.ClaimRequest{Now: now,
				Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 10}}})
			require.NoError(t, err)
			claims := claimed.Claims
			require.Len(t, claims, 2)
			require.True(t, at.Equal(claims[1].Due), claims[1].Due)
		})
	}
}

// TestSQLiteFullClaimsMarkByTheTimesAsStored proves contract 5.12: such a time does not make a
// claim mark rows that it has not reached. These would not be released before the next check of all
// lanes.
func TestSQLiteFullClaimsMarkByTheTimesAsStored(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	db, s := storetest.Migrated(t, testenv.SQLite(t))
	batch := store.AcceptBatch{Now: now.Add(-8 * time.Hour)}
	for _, key := range []string{"a", "b", "c", "d"} {
		batch.Messages = append(batch.Messages, store.NewMessage{
			Message:  models.Message{ID: key, OrderingKey: []byte(key)},
			Handlers: []store.NewStatus{{HandlerKey: "mail", Lane: store.LaneOf("mail", []byte(key))}},
		})
	}
	_, err := s.Accept(t.Context(), batch)
	require.NoError(t, err)
	// The index sorts "a" by its hour in its zone, three before the hour it means.
	for id, at := range map[string]time.Time{
		"a": now.Add(-time.Hour).In(time.FixedZone("-03", -3*3600)), "b": now.Add(-3 * time.Hour),
		"c": now.Add(-2 * time.Hour), "d": now.Add(-2 * time.Hour),
	} {
		require.NoError(t, db.Model(&models.HandlerStatus{}).Where("message_id = ?", id).Update("next_attempt_at", at).Error)
	}
	rule := store.LaneRule{Handlers: []int64{store.LaneHandler("mail")}}
	for _, left := range []int{3, 2, 1, 0} {
		claimed, err := s.Claim(t.Context(), store.ClaimRequest{Now: now,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		require.NoError(t, err)
		require.Len(t, claimed.Claims, 1, "%d left", left)
	}
}

// TestSQLiteWindowsEndAtTheTimesAsStored proves contract 4.4: such a time does not make a walk over a
// key's statuses begin again, or leave any out.
func TestSQLiteWindowsEndAtTheTimesAsStored(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, zone := range []int{-3 * 3600, 4 * 3600} {
		db, s := storetest.Migrated(t, testenv.SQLite(t))
		batch := store.AcceptBatch{Now: now.Add(-30 * time.Hour)}
		for i := range store.WindowRows + 10 {
			batch.Messages = append(batch.Messages, store.NewMessage{
				Message: models.Message{ID: fmt.Sprint(i)}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}})
		}
		_, err := s.Accept(t.Context(), batch)
		require.NoError(t, err)
		at := now.Add(-26 * time.Hour).In(time.FixedZone("", zone))
		require.NoError(t, db.Model(&models.HandlerStatus{}).Where("true").Update("next_attempt_at", at).Error)
		var found []int
		var after *store.Place
		for len(found) < 3 {
			w, err := s.NextWindow(t.Context(), "mail", after, []string{"others"}, now)
			require.NoError(t, err)
			claimed, err := s.Claim(t.Context(), store.ClaimRequest{Now: now, Within: &w,
				Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 2 * store.WindowRows}}})
			require.NoError(t, err)
			found = append(found, len(claimed.Claims))
			if after = w.End; after == nil {
				break
			}
		}
		require.Equal(t, []int{store.WindowRows, 10}, found)
	}
}
