package store

import (
	"context"
	"database/sql"
	"time"
)

// By handler_statuses_pkey.
const postgresStates = `
SELECT id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL, worker_id::text
FROM {statuses} WHERE id = ANY ($1::text[]::uuid[])`

func (p *postgres) States(ctx context.Context, statusIDs []string) (map[string]State, error) {
	rows, err := Query(ctx, p.pool(ctx), p.text(postgresStates), scanState, statusIDs)
	return byID(rows), doing("read statuses back", err)
}

type identified struct {
	id string
	State
}

func scanState(rows *sql.Rows, s *identified) error {
	var worker sql.NullString
	err := rows.Scan(&s.id, &s.Version, &s.Completed, &s.Poisoned, &s.Processing, &worker)
	s.WorkerID = worker.String
	return err
}

func byID(rows []identified) map[string]State {
	states := make(map[string]State, len(rows))
	for _, row := range rows {
		states[row.id] = row.State
	}
	return states
}

// Pending rows by the due index, which holds nothing else. There is no index
// on worker_id, so every pending row is read: a claim would have to maintain
// one, and claims are a thousand times as frequent. The order is the index's:
// without it a plan made before the arguments are known may read the table, in
// the belief that many rows match.
const postgresClaimsOf = `
SELECT ` + refColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NOT NULL AND worker_id = $1::text::uuid
ORDER BY handler_key, COALESCE(next_attempt_at, created_at), id
LIMIT $2`

// Likewise.
const postgresStuckClaims = `
SELECT ` + refColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at <= $1::timestamptz AND worker_id IS NULL
ORDER BY handler_key, COALESCE(next_attempt_at, created_at), id
LIMIT $2`

// By the due index, oldest due first, then what waits behind others, by the
// index on waiting rows.
const postgresPendingOf = `
SELECT ` + postgresRefColumns + ` FROM (
	(SELECT 1 AS part, COALESCE(next_attempt_at, created_at) AS due, ctid AS place, * FROM {statuses}
	WHERE handler_key = $1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND ` + postgresUnclaimed + `
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT $2)
	UNION ALL
	(SELECT 2, NULL, ctid, * FROM {statuses} WHERE handler_key = $1 AND is_waiting ORDER BY id LIMIT $2)
) s
ORDER BY part, due, id
LIMIT $2`

const (
	postgresRefColumns = `id, message_id, handler_key, version, place::text, error_count, abandoned_count, lane_handler, lane_key`
	refColumns         = `id, message_id, handler_key, version, ctid::text, error_count, abandoned_count, lane_handler, lane_key`
)

// By the due index and the one on waiting rows, one step per key (a loose index
// scan), however many rows each key has. SQLite runs the same text.
const pendingKeys = `
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

func (p *postgres) ClaimsOf(ctx context.Context, workerID string, limit int) ([]Ref, error) {
	refs, err := Query(ctx, p.pool(ctx), p.text(postgresClaimsOf), scanRef, workerID, limit)
	return refs, doing("find the claims of a worker", err)
}

func (p *postgres) StuckClaims(ctx context.Context, before time.Time, limit int) ([]Ref, error) {
	refs, err := Query(ctx, p.pool(ctx), p.text(postgresStuckClaims), scanRef, before.UTC(), limit)
	return refs, doing("find stuck claims", err)
}

func (p *postgres) PendingKeys(ctx context.Context) ([]string, error) {
	keys, err := Query(ctx, p.pool(ctx), p.text(pendingKeys), Value[string])
	return keys, doing("find pending handler keys", err)
}

func (p *postgres) PendingOf(ctx context.Context, handlerKey string, limit int) ([]Ref, error) {
	refs, err := Query(ctx, p.pool(ctx), p.text(postgresPendingOf), scanRef, handlerKey, limit)
	return refs, doing("find pending statuses", err)
}

func scanRef(rows *sql.Rows, r *Ref) error {
	var lane laneColumns
	err := rows.Scan(&r.StatusID, &r.MessageID, &r.HandlerKey, &r.Version, &r.Locator, &r.ErrorCount, &r.AbandonedCount, &lane.handler, &lane.key)
	r.Lane = lane.lane()
	return err
}
