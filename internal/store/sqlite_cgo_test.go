//go:build cgo

package store_test

import (
	"path/filepath"
	"testing"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
)

// The driver in C, which GORM's SQLite driver uses by default.
func TestSQLiteInC(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
			"?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"
		return migrated(t, open(t, sqlite.Open(dsn), gorm.Config{}))
	})
}
