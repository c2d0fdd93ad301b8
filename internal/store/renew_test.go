package store_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// TestReadOnlySessionsOfEachPoolAreRenewed proves contract 5.7: a second inbox of the process, on a pool of its own, is
// not left with sessions that stay read-only.
func TestReadOnlySessionsOfEachPoolAreRenewed(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no sessions
		other := d.Another(t)
		readOnly := &pgconn.PgError{Code: "25006"}
		for _, db := range []*gorm.DB{d.DB, other} { // within a second, as a failover meets both
			pool, err := db.DB()
			require.NoError(t, err)
			require.NoError(t, pool.PingContext(t.Context()))
			require.NotZero(t, pool.Stats().Idle)
			store.RenewSessions(db, readOnly)
			require.Zero(t, pool.Stats().Idle)
		}
	})
}
