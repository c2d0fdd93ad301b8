package base

import (
	"fmt"

	"github.com/gorm-inbox/inbox/internal/columns"
)

// The statements of all dialects. Only the form of their parameters differs.

// OpenSQL is the condition of the index that finds statuses by ID if they are not completed. Only statements with this
// very condition use that index.
const OpenSQL = `CASE WHEN completed_at IS NULL THEN true ELSE false END`

// waitingSQL is the condition of the index on lanes with waiting statuses. Only statements with this very condition use
// that index: those that look for a handler's waiting statuses must not, even if the statistics say that there are
// none.
const waitingSQL = `CASE WHEN is_waiting THEN true ELSE false END`

// PostgresAttemptsSQL is the column attempts of the row with one more entry, a JSON object. The oldest entry is dropped
// beyond columns.MaxAttempts.
func PostgresAttemptsSQL(row, entry string) string {
	return fmt.Sprintf(`((CASE WHEN %[1]s.attempts IS NULL THEN '[]'::jsonb
		WHEN jsonb_array_length(%[1]s.attempts::jsonb) >= %[2]d THEN %[1]s.attempts::jsonb - 0
		ELSE %[1]s.attempts::jsonb END) || %[3]s)::text`, row, columns.MaxAttempts, entry)
}

// SQLiteAttemptsSQL is PostgresAttemptsSQL on SQLite.
func SQLiteAttemptsSQL(row, entry string) string {
	return fmt.Sprintf(`json_insert(CASE WHEN %[1]s.attempts IS NULL THEN '[]'
		WHEN json_array_length(%[1]s.attempts) >= %[2]d THEN json_remove(%[1]s.attempts, '$[0]')
		ELSE %[1]s.attempts END, '$[#]', %[3]s)`, row, columns.MaxAttempts, entry)
}

// LaneStatements read the indexes on lanes.
type LaneStatements struct {
	Waiting, WaitingHandlers, Handlers, HandlerKeys string
	// ByStep says that each of the first three returns only the first value after its first parameter, and is repeated.
	ByStep bool
}

// PartialLanes are the LaneStatements of databases with partial indexes.
var PartialLanes = LaneStatements{Waiting: WaitingLanesSQL, WaitingHandlers: WaitingLaneHandlersSQL,
	Handlers: LaneHandlersSQL, HandlerKeys: LaneHandlerKeysSQL}

// WaitingLanesSQL finds lanes with waiting rows of one lane name. It uses the index on lanes with waiting rows, one
// step per lane (a loose index scan), however many rows wait in a lane.
const WaitingLanesSQL = `
WITH RECURSIVE lanes(lane_key, number) AS (
	SELECT (SELECT lane_key FROM {statuses} WHERE ` + waitingSQL + ` AND lane_handler = $1 AND lane_key > $2 ORDER BY lane_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.lane_key FROM {statuses} s WHERE ` + waitingSQL + ` AND s.lane_handler = $1 AND s.lane_key > l.lane_key
		ORDER BY s.lane_key LIMIT 1), l.number + 1
	FROM lanes l WHERE l.lane_key IS NOT NULL AND l.number < $3
)
SELECT lane_key FROM lanes WHERE lane_key IS NOT NULL`

// WaitingLaneHandlersSQL finds the lane names that have waiting rows, by the same index, one step per name.
const WaitingLaneHandlersSQL = `
WITH RECURSIVE handlers(lane_handler) AS (
	SELECT (SELECT lane_handler FROM {statuses} WHERE ` + waitingSQL + ` ORDER BY lane_handler LIMIT 1)
	UNION ALL
	SELECT (SELECT s.lane_handler FROM {statuses} s WHERE ` + waitingSQL + ` AND s.lane_handler > h.lane_handler
		ORDER BY s.lane_handler LIMIT 1)
	FROM handlers h WHERE h.lane_handler IS NOT NULL
)
SELECT lane_handler FROM handlers WHERE lane_handler IS NOT NULL`

// LaneHandlersSQL finds the lane names of open rows. It uses the index on lanes, one step per name (a loose index
// scan).
const LaneHandlersSQL = `
WITH RECURSIVE handlers(lane_handler) AS (
	SELECT (SELECT lane_handler FROM {statuses} WHERE completed_at IS NULL AND lane_key IS NOT NULL ORDER BY lane_handler LIMIT 1)
	UNION ALL
	SELECT (SELECT s.lane_handler FROM {statuses} s WHERE s.completed_at IS NULL AND s.lane_key IS NOT NULL
		AND s.lane_handler > h.lane_handler ORDER BY s.lane_handler LIMIT 1)
	FROM handlers h WHERE h.lane_handler IS NOT NULL
)
SELECT lane_handler FROM handlers WHERE lane_handler IS NOT NULL`

// LaneHandlerKeysSQL finds handler keys of one lane name. It reads the index on lanes backwards: of each lane the
// newest rows first, which carry the newest keys.
const LaneHandlerKeysSQL = `
SELECT DISTINCT handler_key FROM (
	SELECT handler_key FROM {statuses} WHERE lane_handler = $1 AND completed_at IS NULL AND lane_key IS NOT NULL
	ORDER BY lane_handler DESC, lane_key DESC, is_poisoned DESC, sequence DESC, id DESC LIMIT $2
) s`

// PendingKeysSQL finds the handler keys of pending statuses. It uses the due index and the index on waiting rows, one
// step per key (a loose index scan), however many rows each key has.
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
