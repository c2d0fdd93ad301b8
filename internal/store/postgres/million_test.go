package postgres

import (
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// million is the time at which the rows of loadMillion are read: some of them are due then.
var million = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// loadMillion fills an inbox with a million messages and a status for each, in seconds: it writes
// no log and creates the indexes afterwards. Of the statuses
//
//	900,000 of "hot" have completed,
//	 40,000 of "paused" are due,
//	 30,000 of "hot" are to be retried in a month,
//	 20,000 of "lanes" wait in lane 1 and 5,000 are due in 1,000 others,
//	  2,000 of "hot" are poisoned,
//	  3,000 of "hot" are due.
//
// It makes no statistics of them.
func loadMillion(t *testing.T, db *gorm.DB) {
	t.Helper()
	sqltest.Load(t, db,
		`INSERT INTO inbox_messages SELECT 'm' || n, '', n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' FROM generate_series(1, 1000000) n`,
		`SELECT setval(pg_get_serial_sequence('inbox_messages', 'number'), 1000000)`,
		fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, completed_at, outcome, next_attempt_at, is_poisoned,
			lane_handler, lane_key, is_waiting)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n,
			CASE WHEN n BETWEEN 900001 AND 940000 THEN 'paused' WHEN n BETWEEN 970001 AND 995000 THEN 'lanes' ELSE 'hot' END,
			at, CASE WHEN n <= 900000 THEN at + interval '1 second' END, CASE WHEN n <= 900000 THEN 'processed' ELSE '' END,
			CASE WHEN n BETWEEN 940001 AND 970000 THEN at + interval '1 month' END, n BETWEEN 995001 AND 997000,
			CASE WHEN n BETWEEN 970001 AND 995000 THEN %d END,
			CASE WHEN n BETWEEN 970001 AND 990000 THEN 1 WHEN n BETWEEN 990001 AND 995000 THEN 2 + n %% 1000 END,
			n BETWEEN 970001 AND 990000
		FROM generate_series(1, 1000000) n, LATERAL (SELECT '2026-01-01 12:00:00+00'::timestamptz + n * interval '80 milliseconds' AS at) a`, store.LaneHandler("lanes")),
		`INSERT INTO inbox_markers SELECT 'm' || n, 'hot', '', 't', '2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds'
		FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_audit SELECT gen_random_uuid(), 'a', 'retry', '', '', '2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds', ''
		FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_rejected_messages SELECT gen_random_uuid(), 'c', 't', 0, n, now(), NULL, NULL, '[]', 'bad',
		'2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds' FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_gaps SELECT gen_random_uuid(), 'c', 't', 0, n, n + 1, 'gone', now() FROM generate_series(1, 20000) n`,
	)
}

// growing are the tables that no statement may scan.
var growing = []string{"messages", "handler_statuses", "markers", "audit", "rejected_messages", "gaps"}
