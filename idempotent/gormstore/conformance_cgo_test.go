//go:build cgo

package gormstore_test

import (
	"path/filepath"
	"testing"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// This is the driver in C, which GORM's SQLite driver uses by default.
func TestConformanceOnSQLiteInC(t *testing.T) {
	testenv.OnlySQLiteInC(t)
	conform(t, "sqlite", func(t *testing.T) (*gorm.DB, string) {
		dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
			"?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"
		return testenv.Open(t, sqlite.Open(dsn), gorm.Config{}), ""
	})
}
