package postgres

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/base"
)

// acceptClaimedSQL is acceptNewSQL with statuses that are claimed as they are inserted, for local
// dispatch.
//
// It locks the worker's row, by workers_pkey, for the same reason as claimSQL: MarkReleased must
// not run at the same time. Heartbeats do not wait for this lock. They must not, because it lasts
// until the transaction has ended, and accepts may follow each other without a gap as long as a
// worker lives. If MarkReleased comes first, this statement waits for it, reads the worker's row
// again, and claims nothing.
var acceptClaimedSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $18::text::uuid AND released_at IS NULL AND stopped_at IS NULL FOR KEY SHARE
), ` + acceptFresh("$20") + `, added AS (
	INSERT INTO {statuses} (id, message_number, message_id, handler_key, created_at, lane_handler, lane_key, processing_started_at, worker_id)
	SELECT s.id, fresh.number, s.message_id, COALESCE(s.handler_key, ($11::text[])[1]), LEAST($8::timestamptz, {latest}), s.lane_handler, s.lane_key,
		CASE WHEN worker.id IS NOT NULL THEN $8::timestamptz END, worker.id
	FROM unnest($9::text::uuid[], $10::text::text[], $11::text[], $12::bigint[], $13::bigint[], $17::text[], $19::boolean[])
		WITH ORDINALITY AS s(id, message_id, handler_key, lane_handler, lane_key, namespace, claim, position)
	JOIN fresh ON fresh.id = s.message_id AND fresh.namespace = COALESCE(s.namespace, ($17::text[])[1])
	LEFT JOIN worker ON s.claim
	ORDER BY s.position
	RETURNING id, message_number, created_at, worker_id
)
SELECT fresh.id, fresh.namespace, fresh.number, a.id, a.created_at FROM fresh LEFT JOIN added a ON a.message_number = fresh.number AND a.worker_id IS NOT NULL`

// insertClaimed runs acceptClaimedSQL. args are the arguments that acceptNewSQL has as well.
func (p *Store) insertClaimed(
	ctx context.Context, pool gorm.ConnPool, args []any, contents []byte, worker string, statuses []base.StatusRow,
) (inserted []base.StoredNumber, claimed []base.ClaimedRow, err error) {
	claims := make([]bool, len(statuses))
	claimed = make([]base.ClaimedRow, 0, len(statuses))
	for i, row := range statuses {
		claims[i] = row.Claim
	}
	inserted, err = queryWith(ctx, pool, contents, p.Text(acceptClaimedSQL), func(r row, m *base.StoredNumber) error {
		var status sql.NullString
		var created sql.NullTime
		if err := r.Scan(&m.ID, &m.Namespace, &m.Number, &status, &created); err != nil {
			return err
		}
		if status.Valid {
			claimed = append(claimed, base.ClaimedRow{ID: status.String, CreatedAt: created.Time.UTC()})
		}
		return nil
	}, append(args, worker, claims)...)
	return inserted, claimed, err
}
