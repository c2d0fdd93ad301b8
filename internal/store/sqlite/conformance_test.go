package sqlite_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestSQLite uses the driver in pure Go.
func TestSQLite(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.Run(t, func(t *testing.T) (*gorm.DB, store.Store) { return storetest.Migrated(t, testenv.SQLite(t)) })
}
