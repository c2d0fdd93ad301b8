package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store/base"
)

// TestPostgresClaimPlansIgnoreStaleStatistics proves that a claim does not depend on
// when the table was last analyzed. During an outage every row waits for its next attempt, or is
// claimed, and the statistics then say that no row will ever be due.
func TestPostgresClaimPlansIgnoreStaleStatistics(t *testing.T) {
	t.Parallel() // much of it waits for disks
	x := openExplainer(t)
	db := x.db
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	execute := func(statement string, args ...any) {
		t.Helper()
		require.NoError(t, db.Exec(statement, args...).Error)
	}
	const rows = 40000
	insert := func(from, until int, next *time.Time) {
		execute(`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL, ?::timestamptz
			FROM generate_series(?::bigint, ?::bigint) n`, now.Add(-time.Hour), from, until)
		execute(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, next_attempt_at)
			SELECT gen_random_uuid(), n, 'm' || n, 'hot', ?::timestamptz, ?::timestamptz FROM generate_series(?::bigint, ?::bigint) n`,
			now.Add(-time.Hour), next, from, until)
	}
	later := now.Add(24 * time.Hour)
	insert(1, rows, &later)
	insert(rows+1, rows+1000, nil)

	names := []string{numbers([]int64{1})}
	hourAgo, none := now.Add(-time.Hour), "00000000-0000-0000-0000-000000000000"
	for _, moment := range []struct{ name, was string }{
		{"all waited for their next attempt",
			`UPDATE inbox_handler_statuses SET next_attempt_at = now() + interval '1 month'`},
		{"all were claimed", `UPDATE inbox_handler_statuses SET processing_started_at = now(), next_attempt_at = NULL`},
	} {
		tx := db.Begin()
		require.NoError(t, tx.Error)
		require.NoError(t, tx.Exec(moment.was).Error)
		require.NoError(t, tx.Exec(`ANALYZE inbox_handler_statuses`).Error)
		// Back to the usual state, without its statistics.
		require.NoError(t, tx.Exec(`UPDATE inbox_handler_statuses SET processing_started_at = NULL,
			next_attempt_at = CASE WHEN message_number <= ? THEN ?::timestamptz END`, rows, later).Error)
		require.NoError(t, tx.Commit().Error)
		ones, bytes := []int64{1}, []int64{32 << 20}
		portable := x.portable(t)
		for _, each := range []struct {
			name, statement string
			args            []any
		}{
			{"claim", claimManualSQL, []any{[]string{"hot"}, []int64{100}, now, nil, []*time.Time{nil}, []*string{nil}, ones,
				bytes}},
			{"resumed claim", claimManualSQL, []any{[]string{"hot"}, []int64{100}, now, nil, []*time.Time{&hourAgo},
				[]*string{&none}, ones, bytes}},
			{"claim from lanes", claimLanesSQL, []any{[]string{"hot"}, []int64{10}, now, nil, []string{"hot"}, []int64{10},
				names, []bool{false}, base.LaneWindow, []*time.Time{nil}, []*string{nil}, ones, bytes, ones, bytes,
				[]bool{false}}},
			{"portable claim from lanes", claimLanesAtOnceSQL, []any{[]string{"hot"}, []int64{10}, now, nil, []string{"hot"},
				[]int64{10}, names, []bool{false}, base.LaneWindow, []*time.Time{nil}, []*string{nil}, ones, bytes, ones, bytes,
				[]bool{false}}},
			{"portable claim", claimManualSQL, []any{[]string{"hot"}, []int64{100}, now, nil, []*time.Time{nil}, []*string{nil},
				ones, bytes}},
			{"next due", nextDueSQL, []any{[]string{"hot"}, now}},
			{"open claims", openClaimsSQL, []any{[]string{"hot"}, []*time.Time{nil}, []*string{nil}}},
			{"open claims, on", openClaimsSQL, []any{[]string{"hot"}, []*time.Time{&hourAgo}, []*string{&none}}},
		} {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				t.Run(each.name+" when "+moment.name+" by "+mode, func(t *testing.T) {
					of := x
					if strings.HasPrefix(each.name, "portable") {
						of = portable
					}
					explained := of.explain(t, mode, each.statement, each.args...)
					scans := strings.Join(explained.Scans(), "\n")
					require.Contains(t, scans, "Index Scan inbox_handler_statuses inbox_handler_statuses_due")
					require.NotContains(t, scans, "Bitmap")
					require.NotContains(t, scans, "Seq Scan inbox_handler_statuses")
				})
			}
		}
	}
}
