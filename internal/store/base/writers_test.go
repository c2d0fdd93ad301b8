package base

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func onSQLite(t *testing.T) Database {
	t.Helper()
	d, err := NewDatabase(testenv.SQLite(t), models.Naming{}, nil, store.Options{})
	require.NoError(t, err)
	return d
}

func TestEachWriterOfAStoreHoldsItsSlot(t *testing.T) {
	d := onSQLite(t)
	require.NoError(t, d.Transaction(t.Context(), func(gorm.ConnPool) error {
		require.Len(t, d.writers, 1)
		return nil
	}))
	require.NoError(t, store.RunAlone(t.Context(), d.Writer(t.Context()), func(gorm.ConnPool) error {
		require.Len(t, d.writers, 1)
		return nil
	}))
	require.Empty(t, d.writers)
}

// TestWriterOutwaitsTheQueue checks that a writer is not lost behind one that does not end. The
// database then decides.
func TestWriterOutwaitsTheQueue(t *testing.T) {
	d := onSQLite(t)
	d.writers <- struct{}{} // a writer that never ends
	_, err := store.Exec(t.Context(), d.Writer(t.Context()), `CREATE TABLE t (x)`)
	require.NoError(t, err)
	require.NoError(t, d.Transaction(t.Context(), func(pool gorm.ConnPool) error {
		_, err := store.Exec(t.Context(), pool, `INSERT INTO t VALUES (1)`)
		return err
	}))
}

func TestWriterLeavesTheQueueWhateverHappens(t *testing.T) {
	d := onSQLite(t)
	failed := errors.New("failed")
	require.ErrorIs(t, d.Transaction(t.Context(), func(gorm.ConnPool) error { return failed }), failed)
	require.PanicsWithValue(t, "oops", func() {
		_ = d.Transaction(t.Context(), func(gorm.ConnPool) error { panic("oops") })
	})
	_, err := store.Exec(t.Context(), d.Writer(t.Context()), `no SQL`)
	require.Error(t, err)
	require.Empty(t, d.writers)
}
