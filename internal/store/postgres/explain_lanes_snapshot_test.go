package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestPostgresOldSnapshotsCostAClaimOncePerLane proves contract 5.12 while a dump holds a snapshot.
// Rows that have completed since then do not leave the indexes. A claim passes what a lane has left
// there once per lane, and not once for every row that waits in it.
func TestPostgresOldSnapshotsCostAClaimOncePerLane(t *testing.T) {
	t.Parallel() // much of it waits for disks
	x := openExplainer(t)
	p, db := x.store, x.db
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	// Of each key, 3,000 rows have completed in one lane and 1,500 are due. The due rows are in
	// that lane, under one name or alternating between three, or alternate between it and ten other
	// lanes.
	const completed, due = 3000, 1500
	first := 0
	load := func(key string, names []int64, lanes int) {
		require.NoError(t, db.Exec(`INSERT INTO inbox_messages SELECT ? || n, '', n + ?::bigint, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
			'2026-01-01 12:00:00+00'::timestamptz + n * interval '1 second' FROM generate_series(1, ?::bigint) n`, key, first, completed+due).Error)
		require.NoError(t, db.Exec(fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, lane_handler, lane_key)
			SELECT gen_random_uuid(), n + %[7]d, '%[1]s' || n, '%[1]s', '2026-01-01 12:00:00+00'::timestamptz + n * interval '1 second',
				('%[2]s'::bigint[])[1 + n %% %[3]d], CASE WHEN n <= %[4]d THEN 0 ELSE n %% %[5]d END
			FROM generate_series(1, %[6]d) n`, key, numbers(names), len(names), completed, lanes, completed+due, first)).Error)
		first += completed + due
	}
	load("one", []int64{1}, 1)
	load("renamed", []int64{11, 12, 13}, 1)
	load("many", []int64{21}, 11)
	require.NoError(t, db.Exec(`ANALYZE inbox_handler_statuses`).Error)

	dump := testenv.OpenPostgres(t, x.dsn).Begin()
	t.Cleanup(func() { dump.Rollback() })
	require.NoError(t, dump.Exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`).Error)
	require.NoError(t, dump.Exec(`SELECT count(*) FROM inbox_handler_statuses`).Error)
	require.NoError(t, db.Exec(`UPDATE inbox_handler_statuses SET completed_at = now(), version = version + 1
		WHERE ltrim(message_id, 'onermaydw')::int <= ?`, completed).Error)

	for _, each := range []struct {
		key   string
		names []int64
		skips bool
		limit int64
		lanes float64
	}{
		{"one", []int64{1}, false, 10, 1},
		{"one", []int64{1}, true, 10, 1},
		{"one", []int64{1}, false, 100, 1},
		{"renamed", []int64{11, 12, 13}, false, 10, 1},
		{"renamed", []int64{11, 12, 13}, true, 10, 1},
		{"renamed", []int64{12}, false, 10, 3}, // two names are forgotten
		{"many", []int64{21}, false, 100, 11},
	} {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			t.Run(fmt.Sprintf("%s under %d names, skips %v, limit %d, by %s", each.key, len(each.names), each.skips, each.limit,
				mode), func(t *testing.T) {
				explained := x.explain(t, mode, claimLanesSQL,
					[]string{}, []int64{}, now, nil, []string{each.key}, []int64{each.limit}, []string{numbers(each.names)},
					[]bool{each.skips}, base.LaneWindow, []*time.Time{}, []*string{}, []int64{}, []int64{},
					[]int64{1}, []int64{32 << 20}, []bool{false})
				pages := explained.Hit + explained.Read
				t.Logf("%.0f pages", pages)
				// The window costs this much anyway (see
				// TestPostgresHundredThousandRowsInOneLane). In addition, each lane costs a
				// walk over the completed rows on 130 pages: by heads and by passed, for rows and
				// for poisoned ones.
				window := float64(40 * (2*each.limit + base.LaneWindow))
				require.LessOrEqual(t, pages, window+each.lanes*4*130)
			})
		}
	}

	// The marks are made, so the next claims get further.
	rule := store.LaneRule{Handlers: []int64{1}}
	var claims []string
	for range 3 {
		got, err := p.Claim(t.Context(), store.ClaimRequest{Now: now,
			Limits: []store.KeyLimit{{HandlerKey: "one", Limit: 10, Lanes: &rule}}})
		require.NoError(t, err)
		require.NoError(t, got.LanesErr)
		for _, c := range got.Claims {
			claims = append(claims, c.MessageID)
		}
	}
	require.Equal(t, []string{fmt.Sprintf("one%d", completed+1)}, slices.Compact(claims))
	var waiting int64
	require.NoError(t, db.Model(&models.HandlerStatus{}).Where("handler_key = 'one' AND is_waiting").Count(&waiting).Error)
	require.EqualValues(t, due-1, waiting)
}
