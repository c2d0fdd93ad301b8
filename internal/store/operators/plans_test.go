package operators_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/sqlite"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

var errRollBack = errors.New("roll back")

// explain executes a statement as a prepared one with this plan_cache_mode, and rolls it back.
func explain(t *testing.T, literal *gorm.DB, q operators.Queries, mode, statement string, args ...any) (
	explained sqltest.Plan,
) {
	t.Helper()
	require.ErrorIs(t, literal.Transaction(func(tx *gorm.DB) error {
		connection := tx.Statement.ConnPool
		for _, statement := range []string{`DEALLOCATE ALL`, `SET LOCAL plan_cache_mode = ` + mode, `PREPARE planned AS ` +
			q.StatementText(statement)} {
			_, err := connection.ExecContext(t.Context(), statement)
			require.NoError(t, err, statement)
		}
		execute := `EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned`
		if len(args) > 0 {
			places := make([]string, len(args))
			for i := range places {
				places[i] = fmt.Sprintf("$%d", i+1)
			}
			execute += "(" + strings.Join(places, ", ") + ")"
		}
		rows, err := connection.QueryContext(t.Context(), execute, args...)
		require.NoError(t, err)
		defer rows.Close()
		var text strings.Builder
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			text.WriteString(line)
		}
		require.NoError(t, rows.Err())
		explained = sqltest.ParsePlan(t, text.String())
		return errRollBack
	}), errRollBack)
	return explained
}

// TestEveryStatementsPlanIsChecked proves that PlansOf has every statement of the package.
func TestEveryStatementsPlanIsChecked(t *testing.T) {
	var names []string
	noTime := operators.Form{Form: base.Form{Time: func(time.Time) any { return nil }}}
	for _, each := range operators.PlansOf(operators.New(base.Database{}, noTime)) {
		names = append(names, each.Name)
	}
	require.Empty(t, slices.DeleteFunc(sqltest.Statements(t), func(name string) bool {
		return slices.Contains(names, name)
	}))
}

// TestPostgresPlans proves which index serves each statement among a million completed and 10,000
// poisoned statuses. No statement scans a table that grows, and none reads more than it shows. This
// holds for generic plans of prepared statements, which never see their arguments, and for custom
// plans, before and after statistics are collected.
func TestPostgresPlans(t *testing.T) {
	t.Parallel() // much of it waits for disks
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	literal := testenv.Open(t, postgresdriver.New(postgresdriver.Config{DSN: dsn, PreferSimpleProtocol: true}),
		gorm.Config{})
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	loadMillion(t, db)
	pg, err := postgres.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)

	look := func(t *testing.T, mode string, analyzed bool) {
		for _, each := range operators.PlansOf(pg.Queries) {
			t.Run(each.Name, func(t *testing.T) {
				explained := explain(t, literal, pg.Queries, mode, each.Statement, each.Args...)
				scans := strings.Join(explained.Scans(), "\n") + "\n"
				for _, table := range growing[:2] {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				if !analyzed {
					return
				}
				for _, table := range growing {
					require.NotContains(t, scans, "Seq Scan inbox_"+table)
				}
				if each.Expected != "" {
					require.Contains(t, scans, each.Expected+"\n")
				}
				require.LessOrEqual(t, explained.RowsRead(), each.Max, scans)
				if !slices.Contains(operators.WithoutJIT, each.Name) {
					require.LessOrEqual(t, explained.Cost, sqltest.JITCost)
					require.False(t, explained.Compiled)
				}
			})
		}
	}
	modes := []string{"force_custom_plan", "force_generic_plan"}
	for _, mode := range modes {
		t.Run("without statistics by "+mode, func(t *testing.T) { look(t, mode, false) })
	}
	for _, table := range growing {
		require.NoError(t, db.Exec(`ANALYZE inbox_`+table).Error)
	}
	for _, mode := range modes {
		t.Run("by "+mode, func(t *testing.T) { look(t, mode, true) })
	}

	// Whole calls are fast, too.
	o, err := ops.New(db)
	require.NoError(t, err)
	page, err := o.List(t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}, ErrorText: "unknown"}, "", 100)
	require.NoError(t, err)
	require.Len(t, page.Items, 100)
	failures, err := o.Failures(t.Context(), ops.Filter{})
	require.NoError(t, err)
	require.True(t, failures.Capped)
	require.Equal(t, 10_000, failures.Scanned)
	require.Len(t, failures.Groups, 2)
	require.Equal(t, "customer # is unknown", failures.Groups[0].Error)
	overview, err := o.Overview(t.Context())
	require.NoError(t, err)
	require.Equal(t, ops.Count{N: 10_000}, overview.Handlers[0].Poisoned)
	require.Equal(t, ops.Count{N: 10_000, Capped: true}, overview.Rejected)
}

// TestSQLitePlans proves the same on SQLite, by EXPLAIN QUERY PLAN.
func TestSQLitePlans(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	s, err := sqlite.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	for _, each := range operators.PlansOf(s.Queries) {
		t.Run(each.Name, func(t *testing.T) {
			steps, err := store.Query(t.Context(), db.Statement.ConnPool, s.Queries.StatementText(`EXPLAIN QUERY PLAN `+each.Statement),
				func(rows *sql.Rows, step *string) error {
					var ignored int
					return rows.Scan(&ignored, &ignored, &ignored, step)
				}, each.Args...)
			require.NoError(t, err)
			plan := strings.Join(steps, "\n")
			require.Contains(t, plan, each.SQLite)
			if each.SQLite != "" {
				require.NotRegexp(t, `SCAN inbox_\w+($|\n)`, plan)
				if !strings.Contains(plan, "CO-ROUTINE s") { // then s is a table
					require.NotRegexp(t, `SCAN s($|\n)`, plan)
				}
			}
			// Lists sort what they have looked at; a table of few rows needs no order of an index.
			if !strings.HasPrefix(each.Name, "list") && each.SQLite != "" {
				require.NotContains(t, plan, "TEMP B-TREE FOR ORDER BY")
			}
		})
	}
}

// TestPostgresPlansOfOneHandler proves that what operators see of one handler reads little whatever the planner knows:
// with the statistics of a quiet time, and of a handler that has few statuses among many.
func TestPostgresPlansOfOneHandler(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	literal := testenv.Open(t, postgresdriver.New(postgresdriver.Config{DSN: dsn, PreferSimpleProtocol: true}),
		gorm.Config{})
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	pg, err := postgres.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	execute := func(statements ...string) {
		for _, s := range statements {
			require.NoError(t, db.Exec(s).Error)
		}
	}
	execute(`ALTER TABLE inbox_handler_statuses SET (autovacuum_enabled = false)`,
		`ALTER TABLE inbox_messages SET (autovacuum_enabled = false)`)
	load := func(from, to int) {
		execute(fmt.Sprintf(`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
			'2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' FROM generate_series(%d, %d) n`, from, to),
			// One of 100 is of "rare", the others of "hot". 25,000 are due, and 25,000 are in 5,000 lanes with a poisoned head.
			fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, completed_at, outcome,
				processing_started_at, worker_id, is_poisoned, lane_handler, lane_key, is_waiting)
			SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n,
				CASE WHEN n > 125000 THEN 'lanes' WHEN n %% 100 = 0 THEN 'rare' ELSE 'hot' END, at, CASE WHEN n <= 100000 THEN at END,
				CASE WHEN n <= 100000 THEN 'processed' ELSE '' END, CASE WHEN n BETWEEN 100001 AND 100100 THEN at END,
				CASE WHEN n BETWEEN 100001 AND 100100 THEN '00000000-0000-7000-8000-000000000001'::uuid END, n > 145000,
				CASE WHEN n > 125000 THEN %d END, CASE WHEN n > 125000 THEN n %% 5000 END, n BETWEEN 125001 AND 145000
			FROM generate_series(%d, %d) n, LATERAL (SELECT '2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' AS at) a`,
				store.LaneHandler("lanes"), from, to))
	}
	load(1, 1000)
	execute(`ANALYZE inbox_messages`, `ANALYZE inbox_handler_statuses`)
	load(1001, 150_000)
	execute(`UPDATE inbox_handler_statuses SET sequence = -sequence WHERE is_poisoned`) // they are the heads
	plans := slices.DeleteFunc(operators.PlansOf(pg.Queries), func(p operators.Planned) bool {
		return !slices.Contains([]string{"countOpen", "listClaims", "listParked", "recentStatuses"}, p.Name)
	})
	look := func(t *testing.T) {
		for _, each := range plans {
			for _, key := range []string{"hot", "rare", "lanes"} {
				args := slices.Clone(each.Args)
				if args[0] = any(key); each.Name == "countOpen" {
					args[0] = fmt.Sprintf(`["%s"]`, key)
				}
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					explained := explain(t, literal, pg.Queries, mode, each.Statement, args...)
					scans := strings.Join(explained.Scans(), "\n")
					require.NotContains(t, scans, "Seq Scan inbox_", "%s of %s by %s", each.Name, key, mode)
					require.LessOrEqual(t, explained.RowsRead(), max(each.Max, 45_000), "%s of %s by %s:\n%s", each.Name, key, mode, scans)
				}
			}
		}
	}
	t.Run("with statistics of a quiet time", look)
	execute(`ANALYZE inbox_messages`, `ANALYZE inbox_handler_statuses`)
	t.Run("with skew", look)
	lanes, err := pg.Queries.ParkedLanes(t.Context(), db.Statement.ConnPool, "lanes", 1000, 10_000)
	require.NoError(t, err)
	require.Len(t, lanes, 1000)
}
