package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// By handler_statuses_pkey.
const postgresStates = `
SELECT id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL, worker_id::text
FROM {statuses} WHERE id = ANY ($1::text[]::uuid[])`

// Likewise. One lock confirms all that was read before it.
const postgresLockState = `SELECT 1 FROM {statuses} WHERE id = ANY ($1::text[]::uuid[]) LIMIT 1 FOR KEY SHARE SKIP LOCKED`

// errUnconfirmed: the next time may find a row that can be locked.
var errUnconfirmed = errors.New("their rows are locked by others, and without a lock it is open whether the synchronous standby has them")

func (p *postgres) States(ctx context.Context, statusIDs []string) (map[string]State, error) {
	rows, err := Query(ctx, p.pool(ctx), p.text(postgresStates), scanState, statusIDs)
	var ended []string
	for _, row := range rows {
		if !row.Processing {
			ended = append(ended, row.id)
		}
	}
	if err == nil && len(ended) > 0 {
		var locked []int
		if locked, err = confirmed(ctx, p, postgresLockState, ended); err == nil && len(locked) == 0 {
			err = errUnconfirmed
		}
	}
	if err != nil {
		return nil, doing("read statuses back", err)
	}
	return byID(rows), nil
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

// By the due index, a window of each key: bounded, however much is pending.
const postgresOldestClaimsOf = `
SELECT ` + postgresRefColumns + ` FROM unnest($2::text[]) AS k(key)
CROSS JOIN LATERAL (
	SELECT ctid AS place, * FROM {statuses}
	WHERE handler_key = k.key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT $3
) s
WHERE processing_started_at IS NOT NULL AND worker_id = $1::text::uuid`

// Like the claims of a worker.
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

func (p *postgres) OldestClaimsOf(ctx context.Context, workerID string, handlerKeys []string, window int) ([]Ref, error) {
	refs, err := Query(ctx, p.pool(ctx), p.text(postgresOldestClaimsOf), scanRef, workerID, handlerKeys, window)
	return refs, doing("find the oldest claims of a worker", err)
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
