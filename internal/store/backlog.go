package store

import (
	"context"
	"database/sql"
	"time"
)

// Backlog is what there is to do under one handler key.
type Backlog struct {
	HandlerKey string
	// Due are unclaimed and can be claimed now; Waiting are behind others of
	// their lane; Processing are claimed, and Poisoned nobody has acted on.
	Due, Waiting, Processing, Poisoned int
	// OldestDue is when the oldest of Due became due; zero if none is.
	OldestDue time.Time
	// Capped says that there are more: it was not looked further.
	Capped bool
}

// counted is one row of both dialects' answers.
type counted struct {
	key                                           string
	due, behind, processing, waiting, poisoned, n int
	oldest                                        anyTime
}

func scanBacklog(rows *sql.Rows, c *counted) error {
	return rows.Scan(&c.key, &c.due, &c.behind, &c.processing, &c.n, &c.oldest, &c.waiting, &c.poisoned)
}

// backlog judges what was counted up to most.
func (c counted) backlog(most int) Backlog {
	return Backlog{
		HandlerKey: c.key, Due: c.due, Waiting: c.behind + c.waiting, Processing: c.processing, Poisoned: c.poisoned, OldestDue: c.oldest.Time,
		Capped: c.n >= most || c.waiting >= most || c.poisoned >= most,
	}
}

// By the due index, per key from its oldest row, with what has been claimed since:
// these are in front. Each row with a lane is judged like a claim would, by the
// index on lanes and the one on claimed lanes. Then by the indexes on waiting and
// on poisoned rows. Nowhere more than the limit.
const postgresBacklog = `
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
		SELECT w.due, w.claimed, w.claimed OR k.names IS NULL OR ` + postgresHead + ` AS free
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

func (p *postgres) Backlog(ctx context.Context, keys []KeyLimit, now time.Time) ([]Backlog, error) {
	var names []*string
	var handlerKeys []string
	var limits []int64
	var skips []bool
	most := map[string]int{}
	for _, k := range keys {
		handlerKeys, limits = append(handlerKeys, k.HandlerKey), append(limits, int64(k.Limit))
		var its *string
		if k.Lanes != nil {
			list := numbers(k.Lanes.Handlers)
			its = &list
		}
		names, skips = append(names, its), append(skips, k.Lanes != nil && k.Lanes.SkipPoisoned)
		most[k.HandlerKey] = k.Limit
	}
	rows, err := Query(ctx, p.pool(ctx), p.text(postgresBacklog), scanBacklog, handlerKeys, limits, now.UTC(), names, skips)
	if err != nil {
		return nil, doing("count the backlog", err)
	}
	backlogs := make([]Backlog, len(rows))
	for i, row := range rows {
		backlogs[i] = row.backlog(most[row.key])
	}
	return backlogs, nil
}

// By the same indexes, one statement per key.
const sqliteBacklog = `
SELECT ?3, d.due, d.behind, d.processing, d.n, d.oldest, x.n, p.n
FROM (
	SELECT count(*) AS n, count(*) FILTER (WHERE claimed) AS processing, count(*) FILTER (WHERE NOT claimed AND NOT free) AS behind,
		count(*) FILTER (WHERE NOT claimed AND free) AS due, min(due) FILTER (WHERE NOT claimed AND free) AS oldest
	FROM (
		SELECT w.due, w.claimed, w.claimed OR ?6 IS NULL OR ` + sqliteHead + ` AS free
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

func (s *sqlite) Backlog(ctx context.Context, keys []KeyLimit, now time.Time) ([]Backlog, error) {
	var backlogs []Backlog
	for _, k := range keys {
		var names any
		if k.Lanes != nil {
			list, err := jsonList(append([]int64{}, k.Lanes.Handlers...))
			if err != nil {
				return nil, doing("count the backlog", err)
			}
			names = list
		}
		rows, err := Query(ctx, s.pool(ctx), s.text(sqliteBacklog), scanBacklog, SQLiteTime(now), nil, k.HandlerKey, k.Limit, nil, names, k.Lanes != nil && k.Lanes.SkipPoisoned)
		if err != nil {
			return nil, doing("count the backlog", err)
		}
		for _, row := range rows {
			backlogs = append(backlogs, row.backlog(k.Limit))
		}
	}
	return backlogs, nil
}
