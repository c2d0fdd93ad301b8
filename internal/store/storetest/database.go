package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/models"
)

// Migrated creates the tables and a store on a fresh database.
func Migrated(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := dialects.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	return db, opened
}
