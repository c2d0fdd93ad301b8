package store

import (
	"context"
	"time"
)

// By the primary key.
const sqliteStates = `
SELECT id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL, worker_id
FROM {statuses} WHERE id IN (SELECT value FROM json_each(?1))`

// Pending rows by the due index, which holds nothing else.
const sqliteClaimsOf = `
SELECT ` + sqliteRefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NOT NULL AND worker_id = ?1
LIMIT ?2`

// By the due index, a window of one key: bounded, however much is pending.
const sqliteOldestClaimsOf = `
SELECT ` + sqliteRefColumns + ` FROM (
	SELECT * FROM {statuses}
	WHERE handler_key = ?2 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT ?3
)
WHERE processing_started_at IS NOT NULL AND worker_id = ?1`

// Like the claims of a worker.
const sqliteStuckClaims = `
SELECT ` + sqliteRefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at <= ?1 AND worker_id IS NULL
LIMIT ?2`

// By the due index, oldest due first.
const sqlitePendingOf = `
SELECT ` + sqliteRefColumns + ` FROM {statuses}
WHERE handler_key = ?1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NULL
ORDER BY COALESCE(next_attempt_at, created_at), id
LIMIT ?2`

// By the index on waiting rows.
const sqliteWaitingOf = `
SELECT ` + sqliteRefColumns + ` FROM {statuses} WHERE handler_key = ?1 AND is_waiting ORDER BY id LIMIT ?2`

const sqliteRefColumns = `id, message_id, handler_key, version, '', error_count, abandoned_count, lane_handler, lane_key`

func (s *sqlite) States(ctx context.Context, statusIDs []string) (map[string]State, error) {
	list, err := jsonList(statusIDs)
	if err != nil {
		return nil, doing("read statuses back", err)
	}
	rows, err := Query(ctx, s.pool(ctx), s.text(sqliteStates), scanState, list)
	return byID(rows), doing("read statuses back", err)
}

func (s *sqlite) ClaimsOf(ctx context.Context, workerID string, limit int) ([]Ref, error) {
	refs, err := Query(ctx, s.pool(ctx), s.text(sqliteClaimsOf), scanRef, workerID, limit)
	return refs, doing("find the claims of a worker", err)
}

func (s *sqlite) OldestClaimsOf(ctx context.Context, workerID string, handlerKeys []string, window int) ([]Ref, error) {
	var found []Ref
	for _, key := range handlerKeys {
		refs, err := Query(ctx, s.pool(ctx), s.text(sqliteOldestClaimsOf), scanRef, workerID, key, window)
		if err != nil {
			return nil, doing("find the oldest claims of a worker", err)
		}
		found = append(found, refs...)
	}
	return found, nil
}

func (s *sqlite) StuckClaims(ctx context.Context, before time.Time, limit int) ([]Ref, error) {
	refs, err := Query(ctx, s.pool(ctx), s.text(sqliteStuckClaims), scanRef, SQLiteTime(before), limit)
	return refs, doing("find stuck claims", err)
}

func (s *sqlite) PendingKeys(ctx context.Context) ([]string, error) {
	keys, err := Query(ctx, s.pool(ctx), s.text(pendingKeys), Value[string])
	return keys, doing("find pending handler keys", err)
}

func (s *sqlite) PendingOf(ctx context.Context, handlerKey string, limit int) ([]Ref, error) {
	var refs []Ref
	for _, statement := range []string{sqlitePendingOf, sqliteWaitingOf} {
		found, err := Query(ctx, s.pool(ctx), s.text(statement), scanRef, handlerKey, limit-len(refs))
		if err != nil {
			return nil, doing("find pending statuses", err)
		}
		refs = append(refs, found...)
	}
	return refs, nil
}
