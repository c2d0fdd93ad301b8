package sqltest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// HoldStatuses makes every statement that changes a status on PostgreSQL wait until release. While
// it waits, the statement keeps the locks that it has. Releasing twice does nothing.
func HoldStatuses(t testing.TB, db *gorm.DB) (release func()) {
	t.Helper()
	for _, statement := range []string{
		`CREATE OR REPLACE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`,
		`CREATE OR REPLACE TRIGGER wait_for_the_test BEFORE UPDATE ON inbox_handler_statuses FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`,
	} {
		require.NoError(t, db.Exec(statement).Error)
	}
	held := db.Begin()
	require.NoError(t, held.Exec("SELECT pg_advisory_xact_lock(1)").Error)
	t.Cleanup(func() { held.Rollback() })
	return func() { held.Rollback() }
}
