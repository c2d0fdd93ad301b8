package sqlite

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// backlogSQL counts the work of one key, nowhere more rows than the limit. It uses the due index, then the indexes on
// lanes, on claimed lanes, on waiting and on poisoned rows.
const backlogSQL = `
SELECT ?3, d.due, d.behind, d.processing, d.n, d.oldest, x.n, p.n
FROM (
	SELECT count(*) AS n, count(*) FILTER (WHERE claimed) AS processing, count(*) FILTER (WHERE NOT claimed AND NOT free) AS behind,
		count(*) FILTER (WHERE NOT claimed AND free) AS due, min(due) FILTER (WHERE NOT claimed AND free) AS oldest
	FROM (
		SELECT w.due, w.claimed, w.claimed OR ?6 IS NULL OR ` + headSQL + ` AS free
		FROM (
			SELECT id, sequence, lane_handler, lane_key, processing_started_at IS NOT NULL AS claimed, COALESCE(next_attempt_at, created_at) AS due
			FROM {statuses}
			WHERE handler_key = ?3 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND COALESCE(next_attempt_at, created_at) <= ?1
			ORDER BY COALESCE(next_attempt_at, created_at), id
			LIMIT ?4
		) w
	) s
) d
CROSS JOIN (SELECT count(*) AS n FROM (SELECT 1 FROM {statuses} WHERE handler_key = ?3 AND is_waiting ORDER BY id LIMIT ?4)) x
CROSS JOIN (SELECT count(*) AS n FROM (SELECT 1 FROM {statuses} WHERE handler_key = ?3 AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT ?4)) p`

func (s *Store) Backlog(ctx context.Context, keys []store.KeyLimit, now time.Time) ([]store.Backlog, error) {
	var backlogs []store.Backlog
	for _, k := range keys {
		var names any
		if k.Lanes != nil {
			names = base.JSONList(k.Lanes.Handlers)
		}
		rows, err := store.Query(ctx, s.Pool(ctx), s.Text(backlogSQL), base.ScanBacklog, store.SQLiteTime(now), nil,
			k.HandlerKey, k.Limit, nil, names, k.Lanes != nil && k.Lanes.SkipPoisoned)
		if err != nil {
			return nil, base.Doing("count the backlog", err)
		}
		for _, row := range rows {
			backlogs = append(backlogs, row.Backlog(k.Limit))
		}
	}
	return backlogs, nil
}
