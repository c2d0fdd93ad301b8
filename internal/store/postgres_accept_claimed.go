package store

import (
	"context"
	"database/sql"

	"gorm.io/gorm"
)

// postgresAcceptNew with statuses that are claimed as they are inserted, for
// hand-off (contract 5.17).
//
// The worker's row, by workers_pkey, is locked as in postgresClaim and for the
// same reason, but with a lock that heartbeats do not wait for: this one lasts
// until the transaction has ended, and one accept may follow another without a
// gap for as long as a worker lives. MarkReleased does nothing beside it, and is
// waited for: if it came first, its row is read anew, and nothing is claimed.
var postgresAcceptClaimed = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $19::text::uuid AND released_at IS NULL AND stopped_at IS NULL FOR KEY SHARE
), ` + postgresAcceptFresh("$21") + `, added AS (
	INSERT INTO {statuses} (id, message_number, message_id, handler_key, created_at, lane_handler, lane_key, processing_started_at, worker_id)
	SELECT s.id, fresh.number, s.message_id, COALESCE(s.handler_key, ($11::text[])[1]), LEAST($8::timestamptz, {latest}), s.lane_handler, s.lane_key,
		CASE WHEN worker.id IS NOT NULL THEN $8::timestamptz END, worker.id
	FROM unnest($9::text::uuid[], $10::text::text[], $11::text[], $12::bigint[], $13::bigint[], $18::text[], $20::boolean[])
		WITH ORDINALITY AS s(id, message_id, handler_key, lane_handler, lane_key, namespace, claim, position)
	JOIN fresh ON fresh.id = s.message_id AND fresh.namespace = COALESCE(s.namespace, ($18::text[])[1])
	LEFT JOIN worker ON s.claim
	ORDER BY s.position
	RETURNING id, message_number, handler_key, ctid, created_at, worker_id
)` + postgresTold("$14") + `
SELECT fresh.id, fresh.namespace, fresh.number, a.id, a.ctid::text, a.created_at FROM told, fresh LEFT JOIN added a ON a.message_number = fresh.number AND a.worker_id IS NOT NULL`

// insertClaimed takes the arguments that postgresAcceptNew has, too.
func (p *postgres) insertClaimed(ctx context.Context, pool gorm.ConnPool, args []any, contents []byte, worker string, statuses []statusRow) (inserted []storedNumber, claimed []claimedRow, err error) {
	claims := make([]bool, len(statuses))
	for i, row := range statuses {
		claims[i] = row.claim
	}
	inserted, err = queryWith(ctx, pool, contents, p.text(postgresAcceptClaimed), func(r row, m *storedNumber) error {
		var status, place sql.NullString
		var created sql.NullTime
		if err := r.Scan(&m.id, &m.namespace, &m.number, &status, &place, &created); err != nil {
			return err
		}
		if status.Valid {
			claimed = append(claimed, claimedRow{id: status.String, place: place.String, createdAt: created.Time.UTC()})
		}
		return nil
	}, append(args, worker, claims)...)
	return inserted, claimed, err
}
