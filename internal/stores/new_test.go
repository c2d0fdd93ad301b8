package stores_test

import (
	"bytes"
	"log"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestNewRefusesInvalidSettings(t *testing.T) {
	_, err := stores.New(nil, models.Naming{}, store.Options{})
	require.ErrorContains(t, err, "no database")
	db := testenv.SQLite(t)
	_, err = stores.New(db, models.Naming{Prefix: "a b"}, store.Options{})
	require.ErrorContains(t, err, "table prefix")
	_, err = stores.New(db, models.Naming{Schema: "shop"}, store.Options{})
	require.ErrorContains(t, err, "SQLite has no schemas")
	tx := db.Begin()
	_, err = stores.New(tx, models.Naming{}, store.Options{})
	require.ErrorContains(t, err, "transaction")
	require.NoError(t, tx.Rollback().Error)
}

func TestDialectCannotBeRegisteredTwice(t *testing.T) {
	require.PanicsWithValue(t, `dialects: "sqlite" is registered twice`, func() { stores.Register(sqlitedialect.Dialect, nil) })
}

// TestStoreIgnoresInheritedClausesAndLogsNothing proves contract 3.4, 3.7 with other
// names, a session with leftover clauses, and a verbose logger.
func TestStoreIgnoresInheritedClausesAndLogsNothing(t *testing.T) {
	run := func(t *testing.T, db *gorm.DB, namings ...models.Naming) {
		var logged bytes.Buffer
		chatty := db.Session(&gorm.Session{
			Logger: logger.New(log.New(&logged, "", 0), logger.Config{LogLevel: logger.Info, SlowThreshold: time.Nanosecond}),
		}).Where("1 = 0").Limit(0)
		now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
		for i, naming := range namings {
			require.NoError(t, models.Migrate(t.Context(), db, naming, "test"))
			opened, err := stores.New(chatty, naming, store.Options{TestClock: true})
			require.NoError(t, err)
			// Use the same ID in each: they must not see each other.
			accepted, err := opened.Accept(t.Context(), store.AcceptBatch{Now: now, Messages: []store.NewMessage{{
				Message:  models.Message{ID: "m1", Type: naming.Prefix},
				Handlers: []store.NewStatus{{HandlerKey: "mail"}},
			}}})
			require.NoError(t, err)
			require.Equal(t, []store.Accepted{{Inserted: true, StatusesAdded: 1}}, accepted, i)
		}
		for _, naming := range namings {
			opened, err := stores.New(chatty, naming, store.Options{TestClock: true})
			require.NoError(t, err)
			claimed, err := opened.Claim(t.Context(), store.ClaimRequest{Now: now,
				Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 5}}})
			require.NoError(t, err)
			claims := claimed.Claims
			require.Len(t, claims, 1)
			require.Equal(t, naming.Prefix, claims[0].Message.Type)
			applied, err := opened.Complete(t.Context(), []store.Completion{{
				StatusID: claims[0].StatusID, Version: claims[0].Version,
				Outcome: models.OutcomeProcessed,
			}}, now, store.AwaitLocked)
			require.NoError(t, err)
			require.Equal(t, []bool{true}, applied)
			result, err := opened.Cleanup(t.Context(), store.CleanupRequest{Cutoff: now.Add(time.Hour), Limit: 5})
			require.NoError(t, err)
			require.EqualValues(t, 1, result.Messages)
		}
		require.Empty(t, logged.String())
	}
	t.Run("SQLite", func(t *testing.T) {
		run(t, testenv.SQLite(t), models.Naming{}, models.Naming{Prefix: "Order_"})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		run(t, testenv.Postgres(t), models.Naming{}, models.Naming{Prefix: "Order_"}, models.Naming{Schema: "user"},
			models.Naming{Schema: "Shop", Prefix: "select_"})
	})
}
