package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// migrated makes a store on a fresh database.
func migrated(t *testing.T, db *gorm.DB) (*gorm.DB, store.Store) {
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := store.New(db, models.Naming{})
	require.NoError(t, err)
	return db, opened
}

func TestPostgres(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.Run(t, func(t *testing.T) (*gorm.DB, store.Store) { return migrated(t, testenv.Postgres(t)) })
}

// As behind a transaction pooler, which keeps no prepared statements.
func TestPostgresBySimpleProtocol(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return migrated(t, open(t, postgres.New(postgres.Config{DSN: testenv.PostgresDSN(t), PreferSimpleProtocol: true}), gorm.Config{}))
	})
}

// As accepts of large contents do it, with small and empty ones, too.
func TestPostgresSpeakingToPgx(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunAccepts(t, func(t *testing.T) (*gorm.DB, store.Store) {
		db, opened := migrated(t, testenv.Postgres(t))
		store.SpeakToPgxFrom(opened, 0)
		return db, opened
	})
}

// As with GORM's own cache of prepared statements.
func TestPostgresByPreparedStatements(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.RunStatements(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return migrated(t, open(t, postgres.Open(testenv.PostgresDSN(t)), gorm.Config{PrepareStmt: true}))
	})
}

// The pure Go driver.
func TestSQLite(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	storetest.Run(t, func(t *testing.T) (*gorm.DB, store.Store) { return migrated(t, testenv.SQLite(t)) })
}

// open opens a quiet session and closes its pool when the test ends.
func open(t *testing.T, dialector gorm.Dialector, config gorm.Config) *gorm.DB {
	config.Logger = logger.Discard
	db, err := gorm.Open(dialector, &config)
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(40)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return db
}
