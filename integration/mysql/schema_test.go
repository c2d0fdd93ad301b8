package mysql_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/models"
)

// TestTablesOfAutoMigrateAreRefused shows that no inbox starts on tables whose IDs are compared without case.
func TestTablesOfAutoMigrateAreRefused(t *testing.T) { onEach(t, checkTablesOfAutoMigrateAreRefused) }

func checkTablesOfAutoMigrateAreRefused(t *testing.T, open opener) {
	migrate := func(db *gorm.DB) error { return models.Migrate(t.Context(), db, models.Naming{}, "test") }
	t.Run("made by it", func(t *testing.T) {
		db := open(t)
		_ = db.AutoMigrate(models.All()...) // MySQL has no type uuid, and refuses the second table
		require.True(t, db.Migrator().HasTable(&models.Message{}))
		require.ErrorContains(t, migrate(db), "inbox_messages lacks id varbinary(800)")
		require.ErrorIs(t, models.CheckSchema(t.Context(), db, models.Naming{}, "test"), models.ErrSchemaMissing)
	})
	t.Run("changed by it", func(t *testing.T) {
		db, _ := storetest.Migrated(t, open(t))
		require.NoError(t, migrate(db))
		_ = db.AutoMigrate(models.All()...)
		require.ErrorContains(t, migrate(db), "inbox_messages lacks")
		require.ErrorIs(t, models.CheckSchema(t.Context(), db, models.Naming{}, "test"), models.ErrSchemaOld)
	})
	for lacking, statement := range map[string]string{
		"inbox_worker_locks": `DROP TABLE inbox_worker_locks`, "due_at": `ALTER TABLE inbox_handler_statuses DROP KEY due, DROP COLUMN due_at`,
	} {
		t.Run("without "+lacking, func(t *testing.T) {
			db, _ := storetest.Migrated(t, open(t))
			require.NoError(t, db.Exec(statement).Error)
			require.ErrorContains(t, models.CheckSchema(t.Context(), db, models.Naming{}, "test"), lacking)
		})
	}
}
