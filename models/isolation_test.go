package models_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// TestConcurrentFirstStartsAgreeOnTheName lets the second start read
// that there is no name yet, and wait with its insert for the first.
func TestConcurrentFirstStartsAgreeOnTheName(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{}, "orders"))
		inboxtest.Exec(t, d.DB, `DELETE FROM inbox_meta WHERE "key" IN ('name', 'id')`)
		first := d.DB.Begin()
		t.Cleanup(func() { first.Rollback() })
		require.NoError(t, first.Exec(`INSERT INTO inbox_meta ("key", "value") VALUES ('name', 'orders'), ('id', 'x')`).Error)
		second := make(chan error, 1)
		go func() { second <- models.CheckSchema(t.Context(), d.DB, models.Naming{}, "orders") }()
		inboxtest.Eventually(t, func() bool {
			var waiting int
			require.NoError(t,
				d.DB.Raw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting).Error)
			return waiting == 1
		}, "the second waits")
		require.NoError(t, first.Commit().Error)
		require.NoError(t, inboxtest.Receive(t, second, "the second"))
	})
}
