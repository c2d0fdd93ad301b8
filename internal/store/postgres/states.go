package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// statesSQL uses handler_statuses_pkey: the index on IDs has no completed rows. For the sub-selects, see
// completionsSQL.
const statesSQL = `
SELECT s.id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL
FROM ` + statesOfSQL

// lockStateSQL uses handler_statuses_pkey. One lock confirms all that was read before it. A weaker one could be shared:
// see claimsLock.
const lockStateSQL = `SELECT 1 FROM ` + statesOfSQL + ` LIMIT 1 FOR NO KEY UPDATE OF s SKIP LOCKED`

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

// openClaimsSQL walks the due index from a place on, like dueOfKeySQL. There is no index on worker_id: each claim would
// have to maintain it, and claims are a thousand times as frequent. Claimed rows are due longest, so they are at the
// front of their key, before any number of pending rows. The limit is part of the text: if it was a parameter, a plan
// made before it is known would expect a tenth of the table. Besides the claims, the statement returns the last row of
// a full page.
var openClaimsSQL = fmt.Sprintf(`
SELECT k.position - 1, s.due, s.is_last, s.worker_id::text, s.processing_started_at, `+base.RefColumns+`
FROM unnest($1::text[], $2::timestamptz[], $3::text[]) WITH ORDINALITY AS k(key, after_due, after_id, position)
CROSS JOIN LATERAL (
	SELECT *, row_number() OVER (ORDER BY due, id) = %[1]d AS is_last FROM (
		SELECT COALESCE(next_attempt_at, created_at) AS due, * FROM {statuses}
		WHERE handler_key = k.key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND (COALESCE(next_attempt_at, created_at), id) >
				(COALESCE(k.after_due, '-infinity'), COALESCE(k.after_id::uuid, '00000000-0000-0000-0000-000000000000'))
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT %[1]d
	) page
) s
WHERE s.is_last OR s.processing_started_at IS NOT NULL
ORDER BY k.position, s.due, s.id`, store.ClaimPage)

func (p *Store) OpenClaims(ctx context.Context, walks []store.ClaimWalk) ([]store.OpenClaims, error) {
	keys, dues, ids := make([]string, len(walks)), make([]*time.Time, len(walks)), make([]*string, len(walks))
	for i, walk := range walks {
		keys[i] = walk.HandlerKey
		if walk.After != nil {
			dues[i], ids[i] = inUTC(&walk.After.Due), &walk.After.StatusID
		}
	}
	rows, err := store.Query(ctx, p.Pool(ctx), p.Text(openClaimsSQL), base.ScanOpenClaim, keys, dues, ids)
	return base.OpenClaims(len(walks), rows), base.Doing("find open claims", err)
}
