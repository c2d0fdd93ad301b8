package postgres

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// backlogSQL counts the work of each key, nowhere more rows than the limit. It reads the due index from the key's
// oldest row on. Rows that have been claimed since are in front there. It judges each row with a lane as a claim would,
// by the index on lanes and the index on claimed lanes. Then it reads the indexes on waiting and on poisoned rows.
const backlogSQL = `
WITH keys AS MATERIALIZED (
	SELECT handler_key, most, names::bigint[] AS names, skips, true AS poisoned
	FROM unnest($1::text[], $2::bigint[], $4::text[], $5::boolean[]) AS k(handler_key, most, names, skips)
)
SELECT k.handler_key, d.due, d.behind, d.processing, d.n, d.oldest, w.n, p.n
FROM keys k
CROSS JOIN LATERAL (
	SELECT count(*) AS n, count(*) FILTER (WHERE claimed) AS processing, count(*) FILTER (WHERE NOT claimed AND NOT free) AS behind,
		count(*) FILTER (WHERE NOT claimed AND free) AS due, min(due) FILTER (WHERE NOT claimed AND free) AS oldest
	FROM (
		SELECT w.due, w.claimed, w.claimed OR k.names IS NULL OR ` + headSQL + ` AS free
		FROM (
			SELECT id, sequence, lane_handler, lane_key, true AS leads, processing_started_at IS NOT NULL AS claimed,
				COALESCE(next_attempt_at, created_at) AS due
			FROM {statuses}
			WHERE handler_key = k.handler_key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
				AND COALESCE(next_attempt_at, created_at) <= GREATEST($3::timestamptz, statement_timestamp())
				AND CASE WHEN processing_started_at IS NULL AND next_attempt_at > $3::timestamptz THEN false ELSE true END
			ORDER BY COALESCE(next_attempt_at, created_at), id
			LIMIT k.most
		) w
	) s
) d
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM {statuses} WHERE handler_key = k.handler_key AND is_waiting ORDER BY id LIMIT k.most) s) w
CROSS JOIN LATERAL (
	SELECT count(*) AS n FROM (
		SELECT FROM {statuses} WHERE handler_key = k.handler_key AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT k.most
	) s
) p`

func (p *Store) Backlog(ctx context.Context, keys []store.KeyLimit, now time.Time) ([]store.Backlog, error) {
	var names []*string
	var handlerKeys []string
	var limits []int64
	var skips []bool
	most := map[string]int{}
	for _, k := range keys {
		handlerKeys, limits = append(handlerKeys, k.HandlerKey), append(limits, int64(k.Limit))
		var its *string
		if k.Lanes != nil {
			its = new(numbers(k.Lanes.Handlers))
		}
		names, skips = append(names, its), append(skips, k.Lanes != nil && k.Lanes.SkipPoisoned)
		most[k.HandlerKey] = k.Limit
	}
	pool, err := p.largePool(ctx)
	if err != nil {
		return nil, base.Doing("count the backlog", err)
	}
	rows, err := store.Query(ctx, pool, p.Text(backlogSQL), base.ScanBacklog, handlerKeys,
		limits, now.UTC(), names, skips)
	if err != nil {
		return nil, base.Doing("count the backlog", err)
	}
	backlogs := make([]store.Backlog, len(rows))
	for i, row := range rows {
		backlogs[i] = row.Backlog(most[row.Key])
	}
	return backlogs, nil
}
