package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// openMigrated creates a store on a fresh database.
func openMigrated(t *testing.T, db *gorm.DB) *Store {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	return opened
}

// explainer is a store on a fresh database whose statements a test explains.
type explainer struct {
	store *Store
	dsn   string
	db    *gorm.DB
	// literal is a pool that puts the arguments into the statement: PREPARE and EXECUTE accept
	// nothing else.
	literal *gorm.DB
}

func openExplainer(t *testing.T) explainer {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	literal := testenv.Open(t, postgresdriver.New(postgresdriver.Config{DSN: dsn, PreferSimpleProtocol: true}),
		gorm.Config{})
	x := explainer{store: openMigrated(t, db), dsn: dsn, db: db, literal: literal}
	// Autovacuum would analyze tables that a test wants without statistics, and its snapshot would
	// keep VACUUM from removing dead rows.
	for _, table := range growing {
		require.NoError(t, db.Exec(`ALTER TABLE inbox_`+table+` SET (autovacuum_enabled = off)`).Error)
	}
	return x
}

// portable returns an explainer of the statements of the portable profile, on the same tables.
func (x explainer) portable(t *testing.T) explainer {
	t.Helper()
	opened, err := New(x.db, models.Naming{}, store.Options{Portable: true})
	require.NoError(t, err)
	x.store = opened
	return x
}

// explain executes a statement as a prepared one, with this plan_cache_mode, and rolls it back.
func (x explainer) explain(t *testing.T, mode, statement string, args ...any) (explained sqltest.Plan) {
	t.Helper()
	require.ErrorIs(t, x.literal.Transaction(func(tx *gorm.DB) error {
		connection := tx.Statement.ConnPool
		for _, statement := range []string{`DEALLOCATE ALL`, `SET LOCAL plan_cache_mode = ` + mode, `PREPARE planned AS ` +
			x.store.bounded(statement, 2*500+base.LaneWindow)} {
			_, err := connection.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		execute := `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned`
		if len(args) > 0 {
			places := make([]string, len(args))
			for i := range places {
				places[i] = fmt.Sprintf("$%d", i+1)
			}
			execute += "(" + strings.Join(places, ", ") + ")"
		}
		text, err := store.Query(t.Context(), connection, execute, store.Value[string], args...)
		require.NoError(t, err)
		explained = sqltest.ParsePlan(t, strings.Join(text, "\n"))
		return errRollBack
	}), errRollBack)
	return explained
}

// TestPostgresClaimsAreHeapOnlyUpdates proves that claiming writes to no index. The fill factor and
// the choice of indexes are made for that.
func TestPostgresClaimsAreHeapOnlyUpdates(t *testing.T) {
	db := testenv.Postgres(t)
	opened := openMigrated(t, db)
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const rows = 1000
	batch := store.AcceptBatch{Now: now}
	for i := range rows {
		batch.Messages = append(batch.Messages, store.NewMessage{
			Message: models.Message{ID: fmt.Sprint(i)}, Handlers: []store.NewStatus{{HandlerKey: "mail"}},
		})
	}
	_, err := opened.Accept(t.Context(), batch)
	require.NoError(t, err)
	claims, err := opened.Claim(t.Context(), store.ClaimRequest{Now: now,
		Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: rows}}})
	require.NoError(t, err)
	require.Len(t, claims.Claims, rows)
	require.Greater(t, heapOnly(t, db, rows), int64(rows*99/100))
}

// heapOnly returns how many of so many updates of statuses wrote to no index.
func heapOnly(t *testing.T, db *gorm.DB, of int64) int64 {
	t.Helper()
	var updates struct{ All, HeapOnly int64 }
	require.Eventually(t, func() bool { // sessions report their counts when they are idle
		err := db.Raw(`SELECT n_tup_upd AS "all", n_tup_hot_upd AS heap_only FROM pg_stat_user_tables WHERE relname = 'inbox_handler_statuses'`).Scan(&updates).Error
		return err == nil && updates.All == of
	}, testenv.Patience, 20*time.Millisecond)
	return updates.HeapOnly
}

var errRollBack = fmt.Errorf("roll back")
