package simulated_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/integration/simulation/database"
	simulated "github.com/gorm-inbox/inbox/integration/simulation/store"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// bubble runs a test of two processes, by the machine's clock.
func bubble(t *testing.T, test func(t *testing.T, d *database.Database, db *gorm.DB, one, two store.Store)) {
	synctest.Test(t, func(t *testing.T) {
		d, err := simulated.NewDatabase()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		var opened [2]store.Store
		var db *gorm.DB
		for i := range opened {
			db, _ = storetest.Migrated(t, testenv.Open(t, simulated.Open(d, "process", nil), gorm.Config{}))
			opened[i], err = stores.New(db, models.Naming{}, store.Options{})
			require.NoError(t, err)
		}
		test(t, d, db, opened[0], opened[1])
	})
}

func TestNotificationsReachOtherProcesses(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *gorm.DB, one, two store.Store) {
		l, err := one.Listen(t.Context())
		require.NoError(t, err)
		defer l.Close()
		require.NoError(t, one.Notify(t.Context(), "own"))
		require.NoError(t, two.Notify(t.Context(), "mail", "stock"))
		keys, err := l.Next(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Equal(t, []string{"mail", "stock"}, keys)
		tx := db.Begin()
		require.NoError(t, two.NotifyTx(t.Context(), tx))
		committed := time.AfterFunc(2*time.Hour, func() { tx.Commit() })
		defer committed.Stop()
		began := time.Now()
		keys, err = l.Next(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Empty(t, keys)
		require.Equal(t, 2*time.Hour, time.Since(began))
	})
}

func TestLaterAcceptMayCommitFirst(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *gorm.DB, one, two store.Store) {
		batch := func(id string) store.AcceptBatch {
			return store.AcceptBatch{Now: time.Now(), Messages: []store.NewMessage{{Message: models.Message{ID: id},
				Handlers: []store.NewStatus{{HandlerKey: "mail"}}}}}
		}
		tx := db.Begin()
		_, err := two.AcceptTx(t.Context(), tx, batch("first"))
		require.NoError(t, err)
		_, err = one.Accept(t.Context(), batch("second"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit().Error)
		var ids []string
		require.NoError(t, db.Model(&models.HandlerStatus{}).Order("sequence").Pluck("message_id", &ids).Error)
		require.Equal(t, []string{"first", "second"}, ids)
	})
}

func TestLeasesAndAgesGoByTheDatabasesClock(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, _ *gorm.DB, one, two store.Store) {
		d.SetAhead(-time.Hour)
		held, err := one.AcquireLease(t.Context(), "l", "a", time.Minute, time.Now())
		require.NoError(t, err)
		require.True(t, held)
		held, err = two.AcquireLease(t.Context(), "l", "b", time.Minute, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.False(t, held, "the caller's clock is no matter")
		d.SetAhead(0)
		held, err = two.AcquireLease(t.Context(), "l", "b", time.Minute, time.Now())
		require.NoError(t, err)
		require.True(t, held)
		now, err := one.Clock(t.Context(), time.Time{})
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), now, time.Millisecond)
	})
}
