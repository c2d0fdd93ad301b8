//go:build cgo

package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

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
