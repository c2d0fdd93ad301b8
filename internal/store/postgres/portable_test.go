package postgres_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// sent are the statements of a pool.
type sent struct {
	mu         sync.Mutex
	statements map[string]bool
}

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements[data.SQL] = true
	return ctx
}

// TracePrepareStart is for what an accept sends through pgx itself.
func (s *sent) TracePrepareStart(ctx context.Context, c *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	return s.TraceQueryStart(ctx, c, pgx.TraceQueryStartData{SQL: data.SQL})
}

func (s *sent) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// open opens a pool whose statements are kept.
func (s *sent) open(t *testing.T, dsn string) *gorm.DB {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	config.Tracer = s
	pool := stdlib.OpenDB(*config)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return testenv.Open(t, postgresdriver.New(postgresdriver.Config{Conn: pool}), gorm.Config{})
}

var (
	foreign = regexp.MustCompile(`(?i)\b(ctid|xmin|xmax|cmin|cmax|listen|unlisten|notify|pg_notify|pg_notification_queue_usage|pg_(try_)?advisory\w*)\b`)
	changes = regexp.MustCompile(`(?i)\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+(?:"\w+"\.)?"(inbox_\w+)"`)
)

// notPortable returns what other engines do not understand of a statement.
func notPortable(statement string) []string {
	found := foreign.FindAllString(statement, -1)
	changed := map[string]bool{}
	for _, change := range changes.FindAllStringSubmatch(statement, -1) {
		if changed[change[1]] {
			found = append(found, "changes "+change[1]+" twice")
		}
		changed[change[1]] = true
	}
	return found
}

// TestPortable runs the suite with the portable profile, and reads every statement that the store sends: none uses what
// other engines lack, or changes a table twice.
func TestPortable(t *testing.T) {
	t.Parallel() // much of it waits: for disks, for locks
	all := &sent{statements: map[string]bool{}}
	t.Run("suite", func(t *testing.T) {
		storetest.RunPortable(t, func(t *testing.T) (*gorm.DB, store.Store) {
			dsn := testenv.PostgresDSN(t)
			return storetest.MigratedPortable(t, testenv.OpenPostgres(t, dsn), all.open(t, dsn))
		})
	})
	for statement := range all.statements {
		require.Empty(t, notPortable(statement), statement)
	}
	t.Run("sent", func(t *testing.T) { // of the whole suite
		for _, each := range []string{"is_waiting = marks", "FOR KEY SHARE SKIP LOCKED", `DELETE FROM "inbox_markers"`,
			`INSERT INTO "inbox_messages"`, "holds_lane = claims"} {
			require.True(t, slices.ContainsFunc(statements(all), func(s string) bool { return strings.Contains(s, each) }), each)
		}
	})
}

func statements(s *sent) (all []string) {
	for statement := range s.statements {
		all = append(all, statement)
	}
	return all
}

// TestMigrationTakesAnAdvisoryLock proves docs/engines.md: of what other engines lack, a migration uses nothing else.
func TestMigrationTakesAnAdvisoryLock(t *testing.T) {
	t.Parallel()
	all := &sent{statements: map[string]bool{}}
	require.NoError(t, models.Migrate(t.Context(), all.open(t, testenv.PostgresDSN(t)), models.Naming{}, "test"))
	var found []string
	for statement := range all.statements {
		found = append(found, notPortable(statement)...)
	}
	require.Equal(t, []string{"pg_advisory_xact_lock"}, found)
}

// TestNativeStatementsAreNotTakenForPortable proves that what TestPortable looks for is found where it is.
func TestNativeStatementsAreNotTakenForPortable(t *testing.T) {
	t.Parallel()
	all := &sent{statements: map[string]bool{}}
	_, st := storetest.Migrated(t, all.open(t, testenv.PostgresDSN(t)))
	now := time.Now()
	_, err := st.Claim(t.Context(), store.ClaimRequest{Now: now, Limits: []store.KeyLimit{{HandlerKey: "h", Limit: 1,
		Lanes: &store.LaneRule{Handlers: []int64{store.LaneHandler("h")}}}}})
	require.NoError(t, err)
	require.NoError(t, st.Notify(t.Context(), "h"))
	var found []string
	for statement := range all.statements {
		found = append(found, notPortable(statement)...)
	}
	for _, each := range []string{"ctid", "xmax", "pg_notify", "pg_try_advisory_xact_lock_shared",
		"changes inbox_handler_statuses twice"} {
		require.Contains(t, found, each)
	}
}
