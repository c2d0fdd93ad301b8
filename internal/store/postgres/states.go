package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// statesSQL uses handler_statuses_pkey: the index on IDs has no completed rows. For the sub-selects,
// see completionsSQL.
const statesSQL = `
SELECT s.id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL, worker_id::text
FROM ` + statesOfSQL

// lockStateSQL uses handler_statuses_pkey. One lock confirms all that was read before it.
const lockStateSQL = `SELECT 1 FROM ` + statesOfSQL + ` LIMIT 1 FOR KEY SHARE OF s SKIP LOCKED`

const statesOfSQL = `unnest((SELECT $1::bigint[]), (SELECT $2::text[])) AS k(number, handler_key)
JOIN {statuses} s ON s.message_number = k.number AND s.handler_key = k.handler_key`

// errUnconfirmed means that no row could be locked. The next try may find one that can.
var errUnconfirmed = errors.New("their rows are locked by others, and without a lock it is open whether the synchronous standby has them")

func (p *Store) States(ctx context.Context, refs []store.Ref) (map[string]store.State, error) {
	numbers, keys := make([]int64, len(refs)), make([]string, len(refs))
	for i, ref := range refs {
		numbers[i], keys[i] = ref.MessageNumber, ref.HandlerKey
	}
	rows, err := store.Query(ctx, p.Pool(ctx), p.Text(statesSQL), base.ScanState, numbers, keys)
	states := base.ByID(rows)
	numbers, keys = numbers[:0], keys[:0]
	for _, ref := range refs {
		if state, found := states[ref.StatusID]; found && !state.Processing {
			numbers, keys = append(numbers, ref.MessageNumber), append(keys, ref.HandlerKey)
		}
	}
	if err == nil && len(keys) > 0 {
		var locked []int
		if locked, err = confirmed(ctx, p, lockStateSQL, numbers, keys); err == nil && len(locked) == 0 {
			err = errUnconfirmed
		}
	}
	if err != nil {
		return nil, base.Doing("read statuses back", err)
	}
	return states, nil
}

// claimsOfSQL reads pending rows by the due index, which holds no others. There is no index on
// worker_id, so every pending row is read. Each claim would have to maintain such an index, and
// claims are a thousand times as frequent. The order is that of the index: without it, a plan made
// before the arguments are known may read the table, because the planner expects many matching
// rows.
const claimsOfSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NOT NULL AND worker_id = $1::text::uuid
ORDER BY handler_key, COALESCE(next_attempt_at, created_at), id
LIMIT $2`

// oldestClaimsOfSQL uses the due index and reads a window of each key: bounded, however much is
// pending.
const oldestClaimsOfSQL = `
SELECT ` + base.RefColumns + ` FROM unnest($2::text[]) AS k(key)
CROSS JOIN LATERAL (
	SELECT * FROM {statuses}
	WHERE handler_key = k.key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT $3
) s
WHERE processing_started_at IS NOT NULL AND worker_id = $1::text::uuid`

// stuckClaimsSQL reads the due index as claimsOfSQL does.
const stuckClaimsSQL = `
SELECT ` + base.RefColumns + ` FROM {statuses}
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at <= $1::timestamptz AND worker_id IS NULL
ORDER BY handler_key, COALESCE(next_attempt_at, created_at), id
LIMIT $2`

// pendingOfSQL uses the due index, longest due first, then the index on waiting rows for what waits
// in lanes.
const pendingOfSQL = `
SELECT ` + base.RefColumns + ` FROM (
	(SELECT 1 AS part, COALESCE(next_attempt_at, created_at) AS due, * FROM {statuses}
	WHERE handler_key = $1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND ` + unclaimedSQL + `
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT $2)
	UNION ALL
	(SELECT 2, NULL, * FROM {statuses} WHERE handler_key = $1 AND is_waiting ORDER BY id LIMIT $2)
) s
ORDER BY part, due, id
LIMIT $2`

func (p *Store) ClaimsOf(ctx context.Context, workerID string, limit int) ([]store.Ref, error) {
	refs, err := store.Query(ctx, p.Pool(ctx), p.Text(claimsOfSQL), base.ScanRef, workerID, limit)
	return refs, base.Doing("find the claims of a worker", err)
}

func (p *Store) OldestClaimsOf(
	ctx context.Context, workerID string, handlerKeys []string, window int,
) ([]store.Ref, error) {
	refs, err := store.Query(ctx, p.Pool(ctx), p.Text(oldestClaimsOfSQL), base.ScanRef, workerID, handlerKeys, window)
	return refs, base.Doing("find the oldest claims of a worker", err)
}

func (p *Store) StuckClaims(ctx context.Context, before time.Time, limit int) ([]store.Ref, error) {
	refs, err := store.Query(ctx, p.Pool(ctx), p.Text(stuckClaimsSQL), base.ScanRef, before.UTC(), limit)
	return refs, base.Doing("find stuck claims", err)
}

func (p *Store) PendingKeys(ctx context.Context) ([]string, error) {
	keys, err := store.Query(ctx, p.Pool(ctx), p.Text(base.PendingKeysSQL), store.Value[string])
	return keys, base.Doing("find pending handler keys", err)
}

func (p *Store) PendingOf(ctx context.Context, handlerKey string, limit int) ([]store.Ref, error) {
	refs, err := store.Query(ctx, p.Pool(ctx), p.Text(pendingOfSQL), base.ScanRef, handlerKey, limit)
	return refs, base.Doing("find pending statuses", err)
}
