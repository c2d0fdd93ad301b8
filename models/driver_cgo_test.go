//go:build cgo

package models_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// init adds the driver in C, which GORM's SQLite driver uses by default.
func init() {
	drivers["SQLite in C"] = func(t *testing.T) *gorm.DB {
		dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
			"?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"
		db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
		require.NoError(t, err)
		pool, err := db.DB()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pool.Close()) })
		return db
	}
}
