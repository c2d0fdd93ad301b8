package engine

import (
	"database/sql"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// An application may open a pool for each transaction, so the inbox must not keep closed pools.
func TestClosedPoolsAreForgotten(t *testing.T) {
	var of tables
	remembered := func() (n int) {
		of.pools.Range(func(any, any) bool { n++; return true })
		return n
	}
	remember := func() {
		pool, err := sql.Open(testenv.SQLiteDriver(), testenv.SQLiteDSN(t))
		require.NoError(t, err)
		of.rememberPool(pool)
		require.NoError(t, pool.Close())
	}
	for range 100 {
		remember()
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		remember()
		return remembered() <= 2
	}, testenv.Patience, time.Millisecond, "only the newest are left")
}
