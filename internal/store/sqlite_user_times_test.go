package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// The models are ordinary GORM models (contract 3.4): a time that somebody
// writes through GORM, which a driver may store in a form of its own, must not
// keep any status from being claimed.
func TestSQLiteClaimsWhatUsersRescheduled(t *testing.T) {
	now := time.Now()
	for name, at := range map[string]time.Time{
		"monotonic clock":             now.Add(-26 * time.Hour),
		"UTC":                         now.UTC().Add(-26 * time.Hour),
		"a zone without abbreviation": now.Add(-26 * time.Hour).In(time.FixedZone("", 4*3600)),
		"a numeric zone":              now.Add(-26 * time.Hour).In(time.FixedZone("-03", -3*3600)),
		"a zone with abbreviation":    now.Add(-26 * time.Hour).In(time.FixedZone("CEST", 2*3600)),
	} {
		t.Run(name, func(t *testing.T) {
			db, s := migrated(t, testenv.SQLite(t))
			_, err := s.Accept(t.Context(), store.AcceptBatch{Now: now.Add(-30 * time.Hour), Messages: []store.NewMessage{
				{Message: models.Message{ID: "m1"}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}},
				{Message: models.Message{ID: "m2"}, Handlers: []store.NewStatus{{HandlerKey: "mail"}}},
			}})
			require.NoError(t, err)
			require.NoError(t, db.Model(&models.HandlerStatus{}).Where("message_id = 'm1'").Update("next_attempt_at", at).Error)
			claimed, err := s.Claim(t.Context(), store.ClaimRequest{Now: now, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 10}}})
			require.NoError(t, err)
			claims := claimed.Claims
			require.Len(t, claims, 2)
			require.True(t, at.Equal(claims[1].Due), claims[1].Due)
		})
	}
}
