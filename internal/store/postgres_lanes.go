package store

import (
	"context"
	"database/sql"
	"time"
)

// The first row of each lane by the index on lanes, poisoned ones apart from
// the others; that none is claimed by the index on claimed lanes; the row
// itself by handler_statuses_pkey, not by its place: should it be changed at
// this moment, PostgreSQL looks at its new version.
const postgresAdvance = `
WITH turns AS (
	SELECT names::bigint[] AS names, lane_key, CASE WHEN skips THEN '{f}' ELSE '{f,t}' END::boolean[] AS counting
	FROM unnest($1::text[], $2::bigint[], $3::boolean[]) AS t(names, lane_key, skips)
), free AS MATERIALIZED (
	SELECT f.* FROM turns t
	CROSS JOIN LATERAL (
		SELECT s.* FROM unnest(t.names) AS n(lane_handler)
		CROSS JOIN unnest(t.counting) AS c(poisoned)
		CROSS JOIN LATERAL (
			SELECT id, handler_key, sequence, is_poisoned, is_waiting, processing_started_at IS NOT NULL AS processing,
				next_attempt_at IS NULL OR next_attempt_at <= $4::timestamptz AS is_due
			FROM {statuses}
			WHERE lane_handler = n.lane_handler AND lane_key = t.lane_key AND is_poisoned = c.poisoned AND completed_at IS NULL
			ORDER BY sequence, id LIMIT 1
		) s
		ORDER BY s.sequence, s.id LIMIT 1
	) f
	WHERE NOT f.is_poisoned AND NOT f.processing AND NOT (t.lane_key IS NOT NULL AND EXISTS (
		SELECT FROM {statuses} h WHERE h.lane_handler = ANY (t.names) AND h.lane_key = t.lane_key AND h.holds_lane
	))
), freed AS (
	UPDATE {statuses} SET is_waiting = false, version = version + 1
	WHERE id = ANY (ARRAY(SELECT id FROM free WHERE is_waiting)) AND is_waiting
	RETURNING handler_key
)
SELECT handler_key FROM freed
UNION
SELECT handler_key FROM free WHERE NOT is_waiting AND is_due
ORDER BY handler_key`

// By the index on lanes with waiting rows, one step per lane (a loose index
// scan), however many rows wait in it. SQLite runs the same text.
const waitingLanes = `
WITH RECURSIVE lanes(lane_key, number) AS (
	SELECT (SELECT lane_key FROM {statuses} WHERE is_waiting AND lane_handler = $1 AND lane_key > $2 ORDER BY lane_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.lane_key FROM {statuses} s WHERE s.is_waiting AND s.lane_handler = $1 AND s.lane_key > l.lane_key
		ORDER BY s.lane_key LIMIT 1), l.number + 1
	FROM lanes l WHERE l.lane_key IS NOT NULL AND l.number < $3
)
SELECT lane_key FROM lanes WHERE lane_key IS NOT NULL`

// Likewise.
const waitingLaneHandlers = `
WITH RECURSIVE handlers(lane_handler) AS (
	SELECT (SELECT lane_handler FROM {statuses} WHERE is_waiting ORDER BY lane_handler LIMIT 1)
	UNION ALL
	SELECT (SELECT s.lane_handler FROM {statuses} s WHERE s.is_waiting AND s.lane_handler > h.lane_handler
		ORDER BY s.lane_handler LIMIT 1)
	FROM handlers h WHERE h.lane_handler IS NOT NULL
)
SELECT lane_handler FROM handlers WHERE lane_handler IS NOT NULL`

// By the index on waiting rows. What another transaction has locked is changing
// anyway.
const postgresReleaseWaiting = `
WITH released AS MATERIALIZED (
	SELECT s.place FROM unnest($1::text[]) AS k(handler_key)
	CROSS JOIN LATERAL (
		SELECT ctid AS place FROM {statuses} WHERE handler_key = k.handler_key AND is_waiting ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
	) s
	LIMIT $2
)
UPDATE {statuses} SET is_waiting = false, version = version + 1 WHERE ctid = ANY (ARRAY(SELECT place FROM released))`

func (p *postgres) AdvanceLanes(ctx context.Context, turns []LaneTurn, now time.Time) ([]string, error) {
	if len(turns) == 0 {
		return nil, nil
	}
	names, lanes, skips := make([]string, len(turns)), make([]int64, len(turns)), make([]bool, len(turns))
	for i, turn := range turns {
		names[i], lanes[i], skips[i] = numbers(turn.Handlers), turn.Key, turn.SkipPoisoned
	}
	for attempt := 1; ; attempt++ {
		keys, err := Query(ctx, p.pool(ctx), p.text(postgresAdvance), Value[string], names, lanes, skips, now.UTC())
		if err == nil || !collided(err) || attempt == claimAttempts || ctx.Err() != nil {
			return keys, doing("advance lanes", err)
		}
	}
}

func (p *postgres) CheckLanes(ctx context.Context, rule LaneRule, after *Lane, limit int, now time.Time) (*Lane, []string, error) {
	return checkLanes(ctx, p, rule, after, limit, now)
}

func (p *postgres) waitingLanes(ctx context.Context, name, after int64, limit int) ([]Lane, error) {
	return Query(ctx, p.pool(ctx), p.text(waitingLanes), scanLaneOf(name), name, after, limit)
}

func scanLaneOf(name int64) func(*sql.Rows, *Lane) error {
	return func(rows *sql.Rows, lane *Lane) error {
		lane.Handler = name
		return rows.Scan(&lane.Key)
	}
}

func (p *postgres) WaitingLaneHandlers(ctx context.Context) ([]int64, error) {
	names, err := Query(ctx, p.pool(ctx), p.text(waitingLaneHandlers), Value[int64])
	return names, doing("find lanes with waiting statuses", err)
}

func (p *postgres) ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (int64, error) {
	released, err := Exec(ctx, p.pool(ctx), p.text(postgresReleaseWaiting), handlerKeys, limit)
	return released, doing("release waiting statuses", err)
}
