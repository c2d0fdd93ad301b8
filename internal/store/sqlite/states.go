package sqlite

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// statesSQL uses the primary key: the index on IDs has no completed rows.
const statesSQL = `
SELECT s.id, version, completed_at IS NOT NULL, is_poisoned, processing_started_at IS NOT NULL
FROM json_each(?1) k CROSS JOIN {statuses} s ON s.message_number = json_extract(k.value, '$[0]') AND s.handler_key = json_extract(k.value, '$[1]')`

// openClaimsSQL walks the due index from a place on. Besides the claims it returns the last row of a full page.
var openClaimsSQL = fmt.Sprintf(`
SELECT ?1, due, is_last, worker_id, processing_started_at, `+base.RefColumns+`
FROM (
	SELECT *, row_number() OVER (ORDER BY due, id) = %[1]d AS is_last FROM (
		SELECT COALESCE(next_attempt_at, created_at) AS due, * FROM {statuses}
		WHERE handler_key = ?2 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) >= ?3 AND (COALESCE(next_attempt_at, created_at) > ?3 OR id > ?4)
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT %[1]d
	)
)
WHERE is_last OR processing_started_at IS NOT NULL`, store.ClaimPage)

func (s *Store) States(ctx context.Context, refs []store.Ref) (map[string]store.State, error) {
	keys := make([][2]any, len(refs))
	for i, ref := range refs {
		keys[i] = [2]any{ref.MessageNumber, ref.HandlerKey}
	}
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(statesSQL), base.ScanState, base.JSONList(keys))
	return base.ByID(rows), base.Doing("read statuses back", err)
}

func (s *Store) OpenClaims(ctx context.Context, walks []store.ClaimWalk) ([]store.OpenClaims, error) {
	var found []base.OpenClaimRow
	for i, walk := range walks {
		due, id := "", ""
		if walk.After != nil {
			due, id = store.SQLiteTime(walk.After.Due), walk.After.StatusID
		}
		rows, err := store.Query(ctx, s.Pool(ctx), s.Text(openClaimsSQL), base.ScanOpenClaim, i, walk.HandlerKey, due, id)
		if err != nil {
			return nil, base.Doing("find open claims", err)
		}
		found = append(found, rows...)
	}
	return base.OpenClaims(len(walks), found), nil
}
