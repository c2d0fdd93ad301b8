package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/models"
)

// Migrated makes the tables and a store on a fresh database.
func Migrated(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := dialects.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	return db, opened
}

// Open opens a quiet session and closes its pool when the test ends.
func Open(t testing.TB, dialector gorm.Dialector, config gorm.Config) *gorm.DB {
	t.Helper()
	config.Logger = logger.Discard
	db, err := gorm.Open(dialector, &config)
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(40)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return db
}
