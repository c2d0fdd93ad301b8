package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestPostgres(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.Run(t, func(t *testing.T) (*gorm.DB, store.Store) { return storetest.Migrated(t, testenv.Postgres(t)) })
}

// TestPostgresUsingPgxDirectly accepts as for large contents, with small and empty ones too.
func TestPostgresUsingPgxDirectly(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunAccepts(t, func(t *testing.T) (*gorm.DB, store.Store) {
		db, opened := storetest.Migrated(t, testenv.Postgres(t))
		postgres.SpeakToPgxFrom(opened, 0)
		return db, opened
	})
}

// TestConflictingStatementIsRetriedImmediately proves that a store that does not know the default
// isolation learns it from the first collision, which its caller does not see.
func TestConflictingStatementIsRetriedImmediately(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable read"} {
		dsn := testenv.PostgresDSN(t)
		db, _ := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
		_, opened := storetest.Migrated(t, testenv.OpenPostgres(t, testenv.RoleIsolation(t, dsn, level)))
		me, at := uuid.NewString(), time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
		_, err := opened.AcquireLease(t.Context(), "lease", me, time.Hour, at)
		require.NoError(t, err)

		other := db.Begin()
		t.Cleanup(func() { other.Rollback() })
		require.NoError(t, other.Exec("UPDATE inbox_locks SET owner_id = owner_id").Error)
		renewed := make(chan error, 1)
		go func() {
			_, err := opened.AcquireLease(t.Context(), "lease", me, time.Hour, at)
			renewed <- err
		}()
		require.Eventually(t, func() bool {
			var waiting int
			return db.Raw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting).Error == nil && waiting == 1
		}, testenv.Patience, 10*time.Millisecond)
		require.NoError(t, other.Commit().Error)
		require.NoError(t, <-renewed)
	}
}

// TestLargeReadsAreNotJITCompiled proves that compiling, which takes far longer than such a
// statement, is off for it alone.
func TestLargeReadsAreNotJITCompiled(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	singles := store.NewSingles(db)
	setting := func(singles store.Singles, name string) string {
		values, err := store.Query(t.Context(), singles.Pool(t.Context()), "SELECT current_setting($1)", store.Value[string], name)
		require.NoError(t, err)
		return values[0]
	}
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	require.NoError(t, db.Exec("SET jit = on").Error)
	require.Equal(t, "off", setting(singles.WithoutJIT(), "jit"))
	require.NotEqual(t, setting(singles, "idle_in_transaction_session_timeout"),
		setting(singles.WithoutJIT(), "idle_in_transaction_session_timeout"))
	require.Equal(t, "on", setting(singles, "jit"), "the session's own setting is as it was")
}

// TestServerEndsIdleTransactionsWithStatedIsolation proves that a client that vanishes between
// the statement and the COMMIT does not keep, for example, a lease locked until TCP gives its
// connection up.
func TestServerEndsIdleTransactionsWithStatedIsolation(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	singles := store.NewSingles(db)
	timeout := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		values, err := store.Query(ctx, singles.Pool(ctx),
			"SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)::int || 's'",
			store.Value[string])
		require.NoError(t, err)
		require.Len(t, values, 1)
		return values[0]
	}
	before := timeout()
	singles.StateIsolation()
	limit, err := time.ParseDuration(timeout())
	require.NoError(t, err)
	require.LessOrEqual(t, limit, testenv.Patience, "the context's deadline")
	require.Positive(t, limit)
	singles = store.NewSingles(db)
	require.Equal(t, before, timeout(), "the session's own setting is as it was")
}

func TestPartitioned(t *testing.T) {
	t.Parallel()
	storetest.RunPartitioned(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.MigratedSpread(t, testenv.Postgres(t))
	}, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.MigratedKept(t, testenv.Postgres(t))
	})
}
