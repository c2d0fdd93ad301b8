//go:build cgo

package sqlite_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestSQLiteInC uses the driver in C, which GORM's SQLite driver uses by default.
func TestSQLiteInC(t *testing.T) {
	testenv.OnlySQLiteInC(t)
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
			"?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"
		return storetest.Migrated(t, testenv.Open(t, sqlite.Open(dsn), gorm.Config{}))
	})
}

// TestBusyAndInterruptedStatementsOfSQLiteHaveWaited uses the errors of the driver in C, which
// tests can make. Those of the driver in pure Go have the same codes.
func TestBusyAndInterruptedStatementsOfSQLiteHaveWaited(t *testing.T) {
	for code, waited := range map[sqlite3.ErrNo]bool{
		sqlite3.ErrBusy: true, sqlite3.ErrLocked: true, sqlite3.ErrInterrupt: true, sqlite3.ErrFull: false,
		sqlite3.ErrConstraint: false,
	} {
		require.Equal(t, waited, store.IsWaiting(fmt.Errorf("begin: %w", sqlite3.Error{Code: code})), "%v", code)
	}
}
