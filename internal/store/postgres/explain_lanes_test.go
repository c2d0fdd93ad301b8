package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestPostgresHundredThousandRowsInOneLane proves contract 5.12: 100,000 rows behind one
// blocked lane cost other lanes nothing. A claim that meets them marks a bounded number, and no
// statement reads them after they are marked.
func TestPostgresHundredThousandRowsInOneLane(t *testing.T) {
	t.Parallel() // much of it waits for disks
	x := openExplainer(t)
	p, db := x.store, x.db
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	mail, stock := store.LaneHandler("mail"), store.LaneHandler("stock")
	const blocked = 1
	for _, statement := range []string{
		// The first row of lane 1 of "mail" is poisoned, and 100,000 rows wait behind it. 1,000
		// more lanes of "mail" and 1,000 of "stock" have five rows each. 2,000 rows have no lane.
		`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
			'2026-01-01 12:00:00+00'::timestamptz + n * interval '100 milliseconds' FROM generate_series(1, 112001) n`,
		fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, is_poisoned, lane_handler, lane_key)
			SELECT gen_random_uuid(), n, 'm' || n, CASE WHEN n <= 105001 THEN 'mail' WHEN n <= 110001 THEN 'stock' ELSE 'plain' END,
				'2026-01-01 12:00:00+00'::timestamptz + n * interval '100 milliseconds', n = 1,
				CASE WHEN n <= 105001 THEN %d WHEN n <= 110001 THEN %d END,
				CASE WHEN n <= 100001 THEN %d WHEN n <= 110001 THEN 10 + n %% 1000 END
			FROM generate_series(1, 112001) n`, mail, stock, blocked),
		`ANALYZE inbox_messages`, `ANALYZE inbox_handler_statuses`,
	} {
		require.NoError(t, db.Exec(statement).Error)
	}
	modes := []string{"force_custom_plan", "force_generic_plan"}
	claim := func(plain, ordered []string, skips bool) []any {
		quotas := func(keys []string) []int64 { return slices.Repeat([]int64{10}, len(keys)) }
		bytes := func(keys []string) []int64 { return slices.Repeat([]int64{32 << 20}, len(keys)) }
		names := []string{numbers([]int64{mail}), numbers([]int64{stock})}[:len(ordered)]
		return []any{plain, quotas(plain), now, nil, ordered, quotas(ordered), names,
			slices.Repeat([]bool{skips}, len(ordered)), base.LaneWindow, make([]*time.Time, len(plain)),
			make([]*string, len(plain)), quotas(plain), bytes(plain), quotas(ordered), bytes(ordered),
			make([]bool, len(ordered))}
	}
	const due = "Index Scan inbox_handler_statuses inbox_handler_statuses_due"
	check := func(name, statement string, args []any, maxRows, maxPages float64, expected ...string) {
		for _, mode := range modes {
			t.Run(name+" by "+mode, func(t *testing.T) {
				explained := x.explain(t, mode, statement, args...)
				scans := strings.Join(explained.Scans(), "\n")
				t.Logf("%.0f rows, %.0f pages by\n%s", explained.RowsRead(), explained.Hit+explained.Read, scans)
				for _, each := range expected {
					require.Contains(t, scans, each)
				}
				require.NotContains(t, scans, "inbox_handler_statuses_poisoned", "poisoned rows may be many")
				require.NotContains(t, scans, "Seq Scan inbox_messages")
				require.NotContains(t, scans, "Seq Scan inbox_handler_statuses")
				require.LessOrEqual(t, explained.RowsRead(), maxRows)
				require.LessOrEqual(t, explained.Hit+explained.Read, maxPages)
			})
		}
	}
	const lanes, holders = "Index Only Scan inbox_handler_statuses inbox_handler_statuses_lane\n", "inbox_handler_statuses_lane_holder"

	// A window of 1,020 rows. Each row is read twice, judged twice by one row of its lane, locked
	// and updated.
	check("a claim that meets them", claimLanesSQL, claim(nil, []string{"mail"}, false), 10*1020, 40*1020, due, lanes,
		"Tid Scan inbox_handler_statuses")

	rule := store.LaneRule{Handlers: []int64{mail}}
	request := store.ClaimRequest{Now: now, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 10, Lanes: &rule}}}
	waiting := func() (rows int64) {
		require.NoError(t, db.Model(&models.HandlerStatus{}).Where("is_waiting").Count(&rows).Error)
		return rows
	}
	for claims := range 3 {
		request.Limits[0].Runs = claims == 2 // marks, too, where it finds nothing else
		got, err := p.Claim(t.Context(), request)
		require.NoError(t, err)
		require.Empty(t, got.Claims)
		require.Equal(t, []string{"mail"}, got.More)
		require.EqualValues(t, (claims+1)*(2*10+base.LaneWindow), waiting())
	}
	// All of them are marked after a hundred claims. What the marks leave in the indexes is removed
	// by the next vacuum. Until then claims pass its pages.
	execute := func(statement string, args ...any) {
		require.NoError(t, db.Exec(statement, args...).Error)
		// An older snapshot, such as that of an autovacuum of PostgreSQL's own tables, would keep the
		// dead rows.
		require.Eventually(t, func() bool {
			var older int
			require.NoError(t, db.Raw(`SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL`).Scan(&older).Error)
			return older == 0
		}, testenv.Patience, 10*time.Millisecond)
		require.NoError(t, db.Exec(`VACUUM (ANALYZE) inbox_handler_statuses`).Error)
	}
	execute(`UPDATE inbox_handler_statuses SET is_waiting = true, version = version + 1
		WHERE lane_key = ? AND NOT is_poisoned AND NOT is_waiting`, blocked)
	check("a claim of other lanes", claimLanesSQL, claim(nil, []string{"mail"}, false), 100, 400, due, lanes, holders)
	check("a claim of all handlers", claimLanesSQL, claim([]string{"plain"}, []string{"mail", "stock"}, false), 300, 1000,
		due)
	check("next due", nextDueSQL, []any{[]string{"mail", "stock", "plain"}, now}, 10, 50, due)
	names := []string{numbers([]int64{mail, 7}), numbers([]int64{mail}), numbers([]int64{stock})}
	check("advance lanes", advanceSQL, []any{names, []int64{blocked, 11, 12}, []bool{false, false, false}, now, nil,
		make([]bool, 3)}, 20, 100,
		"Index Scan inbox_handler_statuses inbox_handler_statuses_lane\n")
	check("waiting lanes", base.WaitingLanesSQL, []any{mail, int64(store.BeforeAllLanes), 100}, 10, 50,
		"inbox_handler_statuses_waiting_lane")
	check("waiting lane handlers", base.WaitingLaneHandlersSQL, nil, 10, 50, "inbox_handler_statuses_waiting_lane")
	check("names of lanes", base.LaneHandlersSQL, nil, 10, 50, "inbox_handler_statuses_lane\n")
	check("handler keys of lanes", base.LaneHandlerKeysSQL, []any{mail, base.SplitLaneWindow}, base.SplitLaneWindow,
		2*base.SplitLaneWindow, "inbox_handler_statuses_lane")
	// Each released row is written to every index, which may search for free space: mostly 2,100
	// pages, once 5,136. The whole lane would be 100,000.
	check("release waiting rows", releaseWaitingSQL, []any{[]string{"mail", "plain"}, 100}, 400, 10_000,
		"inbox_handler_statuses_waiting")
	check("pending keys", base.PendingKeysSQL, nil, 20, 300, "inbox_handler_statuses_due",
		"inbox_handler_statuses_waiting")

	// Nor do they slow their own lane once it moves on: neither the rows after the first nor, where
	// they are skipped, poisoned ones before it.
	execute(`UPDATE inbox_handler_statuses SET is_poisoned = false, version = version + 1 WHERE message_id = 'm1'`)
	check("a claim of their lane", claimLanesSQL, claim(nil, []string{"mail"}, false), 100, 400, lanes, holders)
	execute(`UPDATE inbox_handler_statuses SET is_poisoned = true, is_waiting = false, version = version + 1
		WHERE lane_key = ? AND substr(message_id, 2)::int <= 20000`, blocked)
	check("advance a lane that skips poisoned rows", advanceSQL, []any{names[:1], []int64{blocked}, []bool{true}, now, nil,
		[]bool{false}}, 20, 100, "inbox_handler_statuses_open")
	keys, err := p.AdvanceLanes(t.Context(), []store.LaneRequest{{LaneRule: store.LaneRule{Handlers: []int64{mail},
		SkipPoisoned: true}, Key: blocked}}, now)
	require.NoError(t, err)
	require.Equal(t, []string{"mail"}, keys)
	check("a claim of a lane that skips poisoned rows", claimLanesSQL, claim(nil, []string{"mail"}, true), 100, 400, lanes,
		holders)
}

// TestPostgresClaimsWithoutLanesStayHeapOnlyUpdates proves that rows without a lane pay nothing for
// lanes: claiming them writes to no index, even if the same claim takes lanes (see
// TestPostgresClaimsAreHeapOnlyUpdates).
func TestPostgresClaimsWithoutLanesStayHeapOnlyUpdates(t *testing.T) {
	db := testenv.Postgres(t)
	opened := openMigrated(t, db)
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const rows = 1000
	batch := store.AcceptBatch{Now: now}
	for i := range rows {
		batch.Messages = append(batch.Messages, store.NewMessage{
			Message: models.Message{ID: fmt.Sprint(i)}, Handlers: []store.NewStatus{{HandlerKey: "plain"},
				{HandlerKey: "ordered"}},
		})
	}
	_, err := opened.Accept(t.Context(), batch)
	require.NoError(t, err)
	got, err := opened.Claim(t.Context(), store.ClaimRequest{Now: now, Limits: []store.KeyLimit{
		{HandlerKey: "plain", Limit: rows}, {HandlerKey: "ordered", Limit: rows,
			Lanes: &store.LaneRule{Handlers: []int64{store.LaneHandler("ordered")}}},
	}})
	require.NoError(t, err)
	require.Len(t, got.Claims, 2*rows)
	require.Greater(t, heapOnly(t, db, 2*rows), int64(2*rows*98/100))
}
