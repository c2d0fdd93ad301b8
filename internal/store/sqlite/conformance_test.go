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

// TestSQLiteReadingTextAsTimes uses a parameter of the driver in Go that github.com/libtnb/sqlite
// sets: the text of an expression is returned as a time if it looks like one.
func TestSQLiteReadingTextAsTimes(t *testing.T) {
	t.Parallel()
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.Migrated(t, testenv.OpenSQLite(t, testenv.SQLiteDSN(t)+"&_texttotime=1"))
	})
}
