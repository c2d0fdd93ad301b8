package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// statesSQL uses the primary key: the index on IDs has no completed rows.
const statesSQL = `
SELECT s.id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL, worker_id
FROM json_each(?1) k CROSS JOIN {statuses} s ON s.message_number = json_extract(k.value, '$[0]') AND s.handler_key = json_extract(k.value, '$[1]')`

// claimsOfSQL reads pending rows by the due index, which holds no others.
const claimsOfSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NOT NULL AND worker_id = ?1
LIMIT ?2`

// oldestClaimsOfSQL uses the due index and reads a window of one key: bounded, however much is
// pending.
const oldestClaimsOfSQL = `
SELECT ` + base.RefColumns + ` FROM (
	SELECT * FROM {statuses}
	WHERE handler_key = ?2 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT ?3
)
WHERE processing_started_at IS NOT NULL AND worker_id = ?1`

// stuckClaimsSQL reads the due index as claimsOfSQL does.
const stuckClaimsSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at <= ?1 AND worker_id IS NULL
LIMIT ?2`

// pendingOfSQL uses the due index, longest due first.
const pendingOfSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses}
WHERE handler_key = ?1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NULL
ORDER BY COALESCE(next_attempt_at, created_at), id
LIMIT ?2`

// waitingOfSQL uses the index on waiting rows.
const waitingOfSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses} WHERE handler_key = ?1 AND is_waiting ORDER BY id LIMIT ?2`

func (s *Store) States(ctx context.Context, refs []store.Ref) (map[string]store.State, error) {
	keys := make([][2]any, len(refs))
	for i, ref := range refs {
		keys[i] = [2]any{ref.MessageNumber, ref.HandlerKey}
	}
	list, err := jsonList(keys)
	if err != nil {
		return nil, base.Doing("read statuses back", err)
	}
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(statesSQL), base.ScanState, list)
	return base.ByID(rows), base.Doing("read statuses back", err)
}

func (s *Store) ClaimsOf(ctx context.Context, workerID string, limit int) ([]store.Ref, error) {
	refs, err := store.Query(ctx, s.Pool(ctx), s.Text(claimsOfSQL), base.ScanRef, workerID, limit)
	return refs, base.Doing("find the claims of a worker", err)
}

func (s *Store) OldestClaimsOf(
	ctx context.Context, workerID string, handlerKeys []string, window int,
) ([]store.Ref, error) {
	var found []store.Ref
	for _, key := range handlerKeys {
		refs, err := store.Query(ctx, s.Pool(ctx), s.Text(oldestClaimsOfSQL), base.ScanRef, workerID, key, window)
		if err != nil {
			return nil, base.Doing("find the oldest claims of a worker", err)
		}
		found = append(found, refs...)
	}
	return found, nil
}

func (s *Store) StuckClaims(ctx context.Context, before time.Time, limit int) ([]store.Ref, error) {
	refs, err := store.Query(ctx, s.Pool(ctx), s.Text(stuckClaimsSQL), base.ScanRef, store.SQLiteTime(before), limit)
	return refs, base.Doing("find stuck claims", err)
}

func (s *Store) PendingKeys(ctx context.Context) ([]string, error) {
	keys, err := store.Query(ctx, s.Pool(ctx), s.Text(base.PendingKeysSQL), store.Value[string])
	return keys, base.Doing("find pending handler keys", err)
}

func (s *Store) PendingOf(ctx context.Context, handlerKey string, limit int) ([]store.Ref, error) {
	var refs []store.Ref
	for _, statement := range []string{pendingOfSQL, waitingOfSQL} {
		found, err := store.Query(ctx, s.Pool(ctx), s.Text(statement), base.ScanRef, handlerKey, limit-len(refs))
		if err != nil {
			return nil, base.Doing("find pending statuses", err)
		}
		refs = append(refs, found...)
	}
	return refs, nil
}
