package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// distributions are states of the tables in which the planner's statistics mislead it, or in which
// what is true on average is wrong of some rows.
var distributions = []struct {
	name     string
	load     func(*testing.T, *gorm.DB)
	analyzed bool // if not, the planner knows nothing, and no more can be required than without statistics
}{
	{"statistics of a quiet time", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, completedOf(1, 1000)...)
		vacuum(t, db)
		execute(t, db, blockedLane(1001, 100_000)...)
	}, true},
	{"a million completed and then 100,000 waiting", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, completedOf(1, 1_000_000)...)
		vacuum(t, db)
		execute(t, db, blockedLane(1_000_001, 100_000)...)
	}, true},
	{"one lane with everything", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, blockedLane(1, 200_000)...)
		vacuum(t, db)
	}, true},
	{"one lane with everything, before it is marked", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, append(blockedLane(1, 200_000),
			`UPDATE inbox_handler_statuses SET is_waiting = false WHERE is_waiting`)...)
		vacuum(t, db)
	}, true},
	{"a large backlog in 10,000 lanes", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, messagesOf(1, 203_000), statusesOf(1, 200_000, fmt.Sprintf(
			`'lanes', NULL, '', NULL, false, %d, n %% 10000, n > 100000`, store.LaneHandler("lanes"))),
			statusesOf(200_001, 203_000, plainDue))
		vacuum(t, db)
	}, true},
	{"a backlog in 10,000 lanes, half of it completed and nothing vacuumed", func(t *testing.T, db *gorm.DB) {
		execute(t, db, `ALTER TABLE inbox_handler_statuses SET (autovacuum_enabled = false)`)
		sqltest.Load(t, db, messagesOf(1, 203_000), statusesOf(1, 200_000, fmt.Sprintf(
			`'lanes', NULL, '', NULL, false, %d, n %% 10000, n > 100000`, store.LaneHandler("lanes"))),
			statusesOf(200_001, 203_000, plainDue))
		execute(t, db,
			`UPDATE inbox_handler_statuses SET version = version + 1, processing_started_at = created_at WHERE message_number <= 100000`,
			`UPDATE inbox_handler_statuses SET version = version + 1, completed_at = created_at, outcome = 'processed',
				processing_started_at = NULL WHERE message_number <= 100000`,
			`UPDATE inbox_handler_statuses SET version = version + 1, is_waiting = false WHERE message_number BETWEEN 100001 AND 150000`,
			`ANALYZE inbox_handler_statuses`, `ANALYZE inbox_messages`)
	}, true},
	{"a large backlog without lanes", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, messagesOf(1, 600_000), statusesOf(1, 600_000, plainDue))
		vacuum(t, db)
	}, true},
	{"a million that are due in a year", func(t *testing.T, db *gorm.DB) {
		sqltest.Load(t, db, messagesOf(1, 1_003_000),
			statusesOf(1, 1_000_000, fmt.Sprintf(`CASE WHEN n %% 2 = 0 THEN 'hot' ELSE 'lanes' END, NULL, '', at + interval '1 year', false,
				CASE WHEN n %% 2 = 1 THEN %d END, CASE WHEN n %% 2 = 1 THEN n %% 1000 END, false`, store.LaneHandler("lanes"))),
			statusesOf(1_000_001, 1_003_000, plainDue))
		vacuum(t, db)
	}, true},
	{"statistics of empty tables", func(t *testing.T, db *gorm.DB) {
		vacuum(t, db)
		sqltest.Load(t, db, append(completedOf(1, 400_000), messagesOf(400_001, 1_000_000),
			statusesOf(400_001, 1_000_000, plainDue))...)
	}, false},
}

func execute(t *testing.T, db *gorm.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		require.NoError(t, db.Exec(statement).Error, statement)
	}
}

func vacuum(t *testing.T, db *gorm.DB) {
	t.Helper()
	for _, table := range growing {
		execute(t, db, `VACUUM (ANALYZE) inbox_`+table)
	}
}

// plainDue is a due status of "hot" for statusesOf.
const plainDue = `'hot', NULL, '', NULL, false, NULL, NULL, false`

func messagesOf(from, until int) string {
	return fmt.Sprintf(`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '70 milliseconds' FROM generate_series(%d, %d) n`, from, until)
}

// statusesOf adds one status of each message. Its columns begin with the handler key, may use n and at,
// when the message came, and are of one row.
func statusesOf(from, until int, columns string) string {
	return fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, created_at, handler_key, completed_at, outcome, next_attempt_at, is_poisoned,
			lane_handler, lane_key, is_waiting)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n, at, %s
		FROM generate_series(%d, %d) n, LATERAL (SELECT '2026-01-01 12:00:00+00'::timestamptz + n * interval '70 milliseconds' AS at) a`,
		columns, from, until)
}

// completedOf adds messages that are completed: every second one of "hot", the others in a thousand lanes.
func completedOf(from, until int) []string {
	return []string{messagesOf(from, until), statusesOf(from, until, fmt.Sprintf(`CASE WHEN n %% 2 = 0 THEN 'hot' ELSE 'lanes' END,
		at + interval '1 second', 'processed', NULL, false, CASE WHEN n %% 2 = 1 THEN %d END, CASE WHEN n %% 2 = 1 THEN n %% 1000 END, false`,
		store.LaneHandler("lanes")))}
}

// blockedLane adds many rows that wait in lane 1 after one that is poisoned, a thousand in lane 2, of
// which one is due, and due ones of "hot".
func blockedLane(from, waiting int) []string {
	lanes, free, hot := store.LaneHandler("lanes"), from+waiting, from+waiting+1000
	return []string{messagesOf(from, hot+2999),
		statusesOf(from, free-1, fmt.Sprintf(`'lanes', NULL, '', NULL, n = %d, %d, 1, n > %[1]d`, from, lanes)),
		statusesOf(free, hot-1, fmt.Sprintf(`'lanes', NULL, '', NULL, false, %d, 2, n > %d`, lanes, free)),
		statusesOf(hot, hot+2999, plainDue),
	}
}

// TestPostgresPlansInOtherDistributions checks that no statement scans a table that grows, reads more
// rows than it needs, or is compiled, whatever the statistics say. Batches are as large as they get.
func TestPostgresPlansInOtherDistributions(t *testing.T) {
	const batch = 1000
	for _, distribution := range distributions {
		t.Run(distribution.name, func(t *testing.T) {
			x := openExplainer(t)
			distribution.load(t, x.db)
			execute(t, x.db, `SELECT setval(pg_get_serial_sequence('inbox_messages', 'number'), 2000000)`)
			check := func(x explainer, profile, mode string, plans []planned) {
				for _, each := range plans {
					t.Run(profile+each.name+" by "+mode, func(t *testing.T) {
						explained := x.explain(t, mode, each.statement, each.args...)
						scans := strings.Join(explained.Scans(), "\n")
						t.Logf("cost %.0f, %.0f rows, %.0f pages by\n%s", explained.Cost, explained.RowsRead(),
							explained.Hit+explained.Read, scans)
						requireNotCompiled(t, each, explained)
						for _, table := range growing[:2] {
							require.NotContains(t, scans, "Seq Scan inbox_"+table)
						}
						if distribution.analyzed {
							require.LessOrEqual(t, explained.RowsRead(), each.most*batch/100, scans)
						}
					})
				}
			}
			native := plansOf(t, x, batch)
			y := x.portable(t)
			portable := differing(plansOf(t, y, batch))
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				check(x, "", mode, native)
				check(y, "portable ", mode, portable)
			}
		})
	}
}
