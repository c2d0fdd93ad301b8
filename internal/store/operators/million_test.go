package operators_test

import (
	"fmt"
	"testing"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// loadMillion fills an inbox with messages and one status of each within seconds: without a
// write-ahead log, and with the indexes created afterwards. Of the statuses
//
//	1,000,000 of "hot" have completed,
//	   10,000 of "hot" are poisoned,
//	   20,000 of "hot" are due, 2,000 of them at the same time,
//	   10,000 of "lanes" wait in lane 1, after 200 that are poisoned.
//
// It collects no statistics of them.
func loadMillion(t *testing.T, db *gorm.DB) {
	t.Helper()
	sqltest.Load(t, db,
		`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' FROM generate_series(1, 1040200) n`,
		fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, completed_at, outcome, next_attempt_at, is_poisoned,
			last_error, fingerprint, error_count, lane_handler, lane_key, is_waiting)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n,
			CASE WHEN n > 1030000 THEN 'lanes' ELSE 'hot' END,
			at, CASE WHEN n <= 1000000 THEN at + interval '1 second' END, CASE WHEN n <= 1000000 THEN 'processed' ELSE '' END,
			CASE WHEN n BETWEEN 1028001 AND 1030000 THEN '2026-01-03 12:00:00+00'::timestamptz END, n BETWEEN 1000001 AND 1010000 OR n BETWEEN 1030001 AND 1030200,
			CASE WHEN n > 1000000 THEN 'customer ' || n || ' is unknown' END,
			CASE WHEN n > 1030000 THEN 'lanes' WHEN n > 1000000 THEN 'hot' END, CASE WHEN n > 1000000 THEN 5 ELSE 0 END,
			CASE WHEN n > 1030000 THEN %d END, CASE WHEN n > 1030000 THEN 1 END, n > 1030200
		FROM generate_series(1, 1040200) n, LATERAL (SELECT '2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' AS at) a`, store.LaneHandler("lanes")),
		`INSERT INTO inbox_audit SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'a', 'retry', '', '',
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds', '' FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_rejected_messages SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'c', 't', 0, n, now(), NULL, NULL, '[]', 'bad',
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds' FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_gaps SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'c', 't', 0, n, n + 1, 'gone', now() FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_markers SELECT 'm' || n, 'h', 'c', 't', now(), now() FROM generate_series(1, 20000) n`,
	)
}

// growing are the tables that no statement may scan.
var growing = []string{"messages", "handler_statuses", "audit", "rejected_messages", "gaps", "markers"}
