// Package connections runs the store's conformance suite once more for each way to connect to
// PostgreSQL that applications choose: other protocols, and roles with less or other settings.
package connections

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) {
	// GORM never ends the goroutine that manages its prepared statements.
	testenv.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// TestPostgresBySimpleProtocol runs as behind a transaction pooler, which keeps no prepared
// statements.
func TestPostgresBySimpleProtocol(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.Migrated(t, testenv.Open(t, postgresdriver.New(postgresdriver.Config{DSN: testenv.PostgresDSN(t),
			PreferSimpleProtocol: true}), gorm.Config{}))
	})
}

// TestPostgresByPreparedStatements runs with GORM's own cache of prepared statements.
func TestPostgresByPreparedStatements(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.Migrated(t, testenv.Open(t, postgresdriver.Open(testenv.PostgresDSN(t)),
			gorm.Config{PrepareStmt: true}))
	})
}

// TestPostgresBySerializableRole runs the store as a role whose transactions are serializable
// unless they state their isolation. The suite's own transactions are not.
func TestPostgresBySerializableRole(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.Run(t, func(t *testing.T) (*gorm.DB, store.Store) {
		dsn := testenv.PostgresDSN(t)
		db, _ := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
		_, opened := storetest.Migrated(t, testenv.OpenPostgres(t, testenv.RoleIsolation(t, dsn, "serializable")))
		warnings, err := opened.CheckIsolation(t.Context(), sql.LevelDefault)
		require.NoError(t, err)
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0].Fields, zap.String(telemetry.FieldIsolation, "serializable"))
		return db, opened
	})
}

// TestPostgresByGrantedRole runs as a role that may do what the printed grants allow and nothing
// else, on tables of another role.
func TestPostgresByGrantedRole(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		dsn := testenv.PostgresDSN(t)
		owner, asOwner := testenv.Role(t, dsn)
		testenv.Grant(t, dsn, "CREATE ON SCHEMA public", owner)
		db, _ := storetest.Migrated(t, testenv.OpenPostgres(t, asOwner))
		role, as := inboxtest.ApplicationRole(t, dsn)
		testenv.Grant(t, dsn, "pg_read_all_stats, pg_signal_backend", role+", "+owner)
		testenv.Grant(t, dsn, "DELETE ON inbox_audit", role) // as AuditRetention needs it
		_, opened := storetest.Migrated(t, testenv.OpenPostgres(t, as))
		return db, opened
	})
}
