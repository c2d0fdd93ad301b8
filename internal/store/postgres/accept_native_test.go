package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// largeBatch returns a batch with more content than an accept copies.
func largeBatch(name string) store.AcceptBatch {
	random := rand.New(rand.NewPCG(1, 2))
	batch := store.AcceptBatch{Now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	for i := range 8 {
		content := make([]byte, 10<<10)
		for at := range content {
			content[at] = byte(random.Uint32())
		}
		batch.Messages = append(batch.Messages, store.NewMessage{
			Message: models.Message{ID: fmt.Sprintf("%s-%d", name, i), TransportName: "kafka", Type: "t", Content: content,
				SerializedProperties: "{}"},
			Handlers: []store.NewStatus{{HandlerKey: "h"}},
		})
	}
	return batch
}

// oneConnection creates an inbox on a pool of one connection.
func oneConnection(t *testing.T, pool *sql.DB) (*gorm.DB, store.Store) {
	t.Helper()
	db := testenv.Open(t, postgresdriver.New(postgresdriver.Config{Conn: pool}), gorm.Config{})
	pool.SetMaxOpenConns(1)
	return storetest.Migrated(t, db)
}

func pgxPool(t *testing.T, dsn string, configure func(*pgx.ConnConfig)) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	if configure != nil {
		configure(config)
	}
	return stdlib.OpenDB(*config)
}

func requireAccepted(t *testing.T, db *gorm.DB, opened store.Store, batch store.AcceptBatch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	accepted, err := opened.Accept(ctx, batch)
	require.NoError(t, err)
	for i, m := range batch.Messages {
		require.Equal(t, store.Accepted{Inserted: true, StatusesAdded: 1}, accepted[i])
		var stored []byte
		require.NoError(t, db.Raw("SELECT content FROM inbox_messages WHERE id = ?", m.ID).Row().Scan(&stored))
		require.True(t, bytes.Equal(m.Content, stored), m.ID)
	}
	pool, err := db.DB()
	require.NoError(t, err)
	require.Zero(t, pool.Stats().InUse)
}

// spokenTo returns how many statements the pool's connection has prepared without database/sql.
func spokenTo(t *testing.T, db *gorm.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Raw("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'stmt\\_%'").Scan(&n).Error)
	return n
}

func TestAcceptOfLargeContentsUsesPgxDirectly(t *testing.T) {
	db, opened := oneConnection(t, pgxPool(t, testenv.PostgresDSN(t), nil))
	small := largeBatch("small")
	small.Messages = small.Messages[:6] // 60 KiB
	requireAccepted(t, db, opened, small)
	require.Zero(t, spokenTo(t, db))
	requireAccepted(t, db, opened, largeBatch("large"))
	require.Equal(t, 1, spokenTo(t, db))
	requireAccepted(t, db, opened, largeBatch("again"))
	require.Equal(t, 1, spokenTo(t, db))
}

func TestAcceptOfLargeContentsIsPreparedAgainAfterAFailure(t *testing.T) {
	db, opened := oneConnection(t, pgxPool(t, testenv.PostgresDSN(t), nil))
	requireAccepted(t, db, opened, largeBatch("first"))
	fails := func(change, text string) {
		t.Helper()
		require.NoError(t, db.Exec(change).Error)
		_, err := opened.Accept(t.Context(), largeBatch("failing"))
		require.ErrorContains(t, err, text)
	}
	var prepared string
	require.NoError(t, db.Raw("SELECT name FROM pg_prepared_statements WHERE name LIKE 'stmt\\_%'").Scan(&prepared).Error)
	fails("DEALLOCATE "+prepared, "does not exist")
	requireAccepted(t, db, opened, largeBatch("deallocated"))
	fails("ALTER TABLE inbox_messages RENAME COLUMN content_type TO ct", "content_type")
	require.NoError(t, db.Exec("ALTER TABLE inbox_messages RENAME COLUMN ct TO content_type").Error)
	requireAccepted(t, db, opened, largeBatch("renamed"))
	require.NoError(t, db.Exec("ALTER TABLE inbox_messages ADD COLUMN more text DEFAULT 'x'").Error)
	requireAccepted(t, db, opened, largeBatch("added"))
	require.NoError(t, db.Exec("ALTER TABLE inbox_messages DROP COLUMN more").Error)
	requireAccepted(t, db, opened, largeBatch("dropped"))
}

// wrapped is a driver around pgx, as tracing has it.
type wrapped struct{ driver.Connector }

type wrappedConn struct{ *stdlib.Conn }

func (w wrapped) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return wrappedConn{c.(*stdlib.Conn)}, nil
}

func TestLargeContentsAreAcceptedWithoutAccessToPgx(t *testing.T) {
	for name, configure := range testenv.PgxReserved() {
		t.Run(name, func(t *testing.T) {
			db, opened := oneConnection(t, pgxPool(t, testenv.PostgresDSN(t), configure))
			requireAccepted(t, db, opened, largeBatch("large"))
			require.Zero(t, spokenTo(t, db))
		})
	}
	t.Run("a driver around it", func(t *testing.T) {
		config, err := pgx.ParseConfig(testenv.PostgresDSN(t))
		require.NoError(t, err)
		db, opened := oneConnection(t, sql.OpenDB(wrapped{stdlib.GetConnector(*config)}))
		requireAccepted(t, db, opened, largeBatch("large"))
		require.Zero(t, spokenTo(t, db))
	})
	t.Run("a connection that has died in the pool", func(t *testing.T) {
		dsn := testenv.PostgresDSN(t)
		db, opened := oneConnection(t, pgxPool(t, dsn, nil))
		requireAccepted(t, db, opened, largeBatch("large"))
		other := testenv.OpenPostgres(t, dsn)
		const others = " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		require.NoError(t, other.Exec("SELECT pg_terminate_backend(pid)"+others).Error)
		require.Eventually(t, func() bool {
			var left int
			return other.Raw("SELECT count(*)"+others).Scan(&left).Error == nil && left == 0
		}, testenv.Patience, 2*time.Millisecond)
		requireAccepted(t, db, opened, largeBatch("more"))
	})
}

func TestCancelledAcceptOfLargeContentsLeavesNothing(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	db, opened := oneConnection(t, pgxPool(t, dsn, nil))
	other := testenv.OpenPostgres(t, dsn)
	held := other.Begin()
	require.NoError(t, held.Error)
	require.NoError(t, held.Exec("LOCK TABLE inbox_messages").Error)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := opened.Accept(ctx, largeBatch("large"))
		failed <- err
	}()
	require.Eventually(t, func() bool {
		var waiting int
		err := other.Raw(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting).Error
		return err == nil && waiting > 0
	}, testenv.Patience, 2*time.Millisecond)
	cancel()
	err := <-failed
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, store.MayBeCommitted(err))
	require.NoError(t, held.Rollback().Error)
	requireAccepted(t, db, opened, largeBatch("large"))
}
