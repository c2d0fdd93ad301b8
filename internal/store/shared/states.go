package shared

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
)

type identified struct {
	ID string
	store.State
}

// ScanState scans a status ID and what the status is now.
func ScanState(rows *sql.Rows, s *identified) error {
	var worker sql.NullString
	err := rows.Scan(&s.ID, &s.Version, &s.Completed, &s.Poisoned, &s.Processing, &worker)
	s.WorkerID = worker.String
	return err
}

// ByID maps status IDs to states.
func ByID(rows []identified) map[string]store.State {
	states := make(map[string]store.State, len(rows))
	for _, row := range rows {
		states[row.ID] = row.State
	}
	return states
}

// PendingKeysSQL goes by the due index and the one on waiting rows, one step per key (a
// loose index scan), however many rows each key has. SQLite runs the same text.
const PendingKeysSQL = `
WITH RECURSIVE pending(handler_key) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting ORDER BY handler_key LIMIT 1)
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE s.completed_at IS NULL AND NOT s.is_poisoned AND NOT s.is_waiting
		AND s.handler_key > p.handler_key ORDER BY s.handler_key LIMIT 1)
	FROM pending p WHERE p.handler_key IS NOT NULL
), waiting(handler_key) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE is_waiting ORDER BY handler_key LIMIT 1)
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE s.is_waiting AND s.handler_key > w.handler_key ORDER BY s.handler_key LIMIT 1)
	FROM waiting w WHERE w.handler_key IS NOT NULL
)
SELECT handler_key FROM pending WHERE handler_key IS NOT NULL
UNION
SELECT handler_key FROM waiting WHERE handler_key IS NOT NULL`

// ScanRef scans a status at its version.
func ScanRef(rows *sql.Rows, r *store.Ref) error {
	var lane LaneColumns
	err := rows.Scan(&r.StatusID, &r.MessageID, &r.HandlerKey, &r.Version, &r.Locator, &r.ErrorCount, &r.AbandonedCount, &lane.Handler, &lane.Key)
	r.Lane = lane.Lane()
	return err
}
