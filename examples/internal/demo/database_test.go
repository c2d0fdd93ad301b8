package demo

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/models"
)

// TestSQLiteIsOpenedAsTheInboxNeedsIt checks the dialect that demonstrations use in place of gorm.io/driver/sqlite: its
// name and parameters, the schema that AutoMigrate makes, the errors, and times.
func TestSQLiteIsOpenedAsTheInboxNeedsIt(t *testing.T) {
	t.Parallel()
	dsn := sqliteDSN(filepath.Join(t.TempDir(), "a # file.db"))
	require.True(t, OnSQLite(dsn))
	db, err := Open(dsn, 2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, Close(db)) })
	require.Equal(t, "sqlite", db.Dialector.Name())
	for pragma, expected := range map[string]string{"busy_timeout": "10000", "journal_mode": "wal", "synchronous": "2",
		"foreign_keys": "1"} {
		var value string
		require.NoError(t, db.Raw("PRAGMA "+pragma).Scan(&value).Error)
		require.Equal(t, expected, value, pragma)
	}

	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "demo"))
	require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "demo"))
	require.NoError(t, db.AutoMigrate(models.All()...), "the schema is already the models'")

	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	marker := models.Marker{MessageID: "m", HandlerKey: "h", ProcessedAt: at, ExpiresAt: at}
	require.NoError(t, db.Create(&marker).Error)
	var read models.Marker
	require.NoError(t, db.Take(&read).Error)
	require.True(t, at.Equal(read.ProcessedAt))

	err = db.Create(&marker).Error
	const primaryKey = 1555 // SQLITE_CONSTRAINT_PRIMARYKEY
	code, found := sqlitedialect.Code(err)
	require.True(t, found, "%T", err)
	require.Equal(t, primaryKey, code)
	require.ErrorIs(t, db.Session(&gorm.Session{}).Dialector.(gorm.ErrorTranslator).Translate(err), gorm.ErrDuplicatedKey)
}

// TestProgressIsZeroWhileTheTablesAreCreated has some tables alone, as MySQL shows them during a migration.
func TestProgressIsZeroWhileTheTablesAreCreated(t *testing.T) {
	t.Parallel()
	db, err := Open(sqliteDSN(filepath.Join(t.TempDir(), "inbox.db")), 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, Close(db)) })
	require.NoError(t, db.Migrator().CreateTable(&models.Message{}, &models.HandlerStatus{}))
	tally, err := ReadTally(t.Context(), db)
	require.NoError(t, err)
	require.Zero(t, tally)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "demo"))
	_, err = ReadTally(t.Context(), db)
	require.NoError(t, err)
}
