package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// numbers encodes a list as an array literal of PostgreSQL. Lists of different lengths cannot be passed in one array of
// arrays.
func numbers(list []int64) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return "{" + strings.Join(texts, ",") + "}"
}

// advanceSQL finds the first row of each lane by the index on lanes, separately for poisoned rows and the others. It
// checks by the index on claimed lanes that no row of the lane is claimed. It claims or releases the row by
// handler_statuses_open and not by its place: if the row changes at this moment, PostgreSQL then checks its new
// version. It does so one by one, in the order of IDs, so that two statements about the same lanes wait for each other
// instead of deadlocking. A row that is released is not claimed, so that it has neither a time nor a worker to lose.
// For other claims of the lane, see claimLanesSQL.
const advanceSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $5::text::uuid AND released_at IS NULL {claims lock}
), turns AS (
	SELECT names::bigint[] AS names, lane_key, CASE WHEN skips THEN '{f}' ELSE '{f,t}' END::boolean[] AS counting,
		CASE WHEN EXISTS (SELECT FROM worker) THEN claim_key ELSE '' END AS claim_key
	FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $3::boolean[]), (SELECT $6::text[])) AS t(names, lane_key, skips, claim_key)
), free AS MATERIALIZED (
	SELECT f.*, t.claim_key = f.handler_key AND f.is_due AS claims FROM turns t
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
), next AS MATERIALIZED (
	SELECT id AS place, claims FROM free WHERE claims OR is_waiting ORDER BY id
), changed AS (
	UPDATE {statuses} SET processing_started_at = CASE WHEN claims THEN $4::timestamptz END,
		worker_id = CASE WHEN claims THEN $5::text::uuid END, version = version + 1, holds_lane = claims, is_waiting = false
	FROM next n
	WHERE id = n.place AND ` + base.OpenSQL + ` AND CASE WHEN claims THEN ` + stillDueSQL + ` ELSE ` + stillWaitingSQL + ` END
	RETURNING ` + claimColumnsSQL + `, claims
)` + claimResultSQL + `
FROM (
	SELECT ` + claimedSQL + ` FROM changed WHERE claims
	UNION ALL
	SELECT ` + noClaimSQL + `, NULL, NULL
	FROM (SELECT handler_key FROM changed WHERE NOT claims UNION SELECT handler_key FROM free WHERE NOT is_waiting AND is_due AND NOT claims) k
) c LEFT JOIN {messages} m ON m.number = c.message_number`

// stillDueSQL is checked again if the row changes at this moment, for example because another worker claims it. It
// hides the condition from the planner, as unclaimedSQL does.
const stillDueSQL = `CASE WHEN processing_started_at IS NOT NULL OR is_poisoned OR next_attempt_at > $4::timestamptz THEN false ELSE true END`

// stillWaitingSQL hides the condition from the planner. If the statistics say that no row waits, an index on waiting
// rows would seem the best way to find one, and it may have a hundred thousand.
const stillWaitingSQL = `CASE WHEN NOT is_waiting THEN false ELSE true END`

// runsSQL finds the heads of runs by handler_statuses_open and locks them, so that none ends or is released meanwhile.
// CASE keeps the planner from reading the index on claimed lanes from its beginning for each. It finds the rows before
// and after them by the index on lanes, poisoned ones apart, and locks those after them by place and version. A run
// ends at the first gap: where a row must not be claimed, and where one has changed or is locked by others.
const runsSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $2::text::uuid AND released_at IS NULL {claims lock}
), heads AS MATERIALIZED (
	SELECT r.run, r.handler_key, r.names::bigint[] AS names, r.quota, r.bytes, h.lane_key, h.sequence, h.id,
		CASE WHEN r.skips THEN '{f}' ELSE '{f,t}' END::boolean[] AS counting
	FROM unnest((SELECT $3::text[]), (SELECT $4::bigint[]), (SELECT $5::text[]), (SELECT $6::text[]), (SELECT $7::boolean[]),
		(SELECT $8::bigint[]), (SELECT $9::bigint[])) WITH ORDINALITY
		AS r(head_id, head_version, handler_key, names, skips, quota, bytes, run)
	CROSS JOIN LATERAL (
		SELECT id, lane_key, sequence FROM {statuses}
		WHERE id = r.head_id::uuid AND version = r.head_version AND ` + base.OpenSQL + `
			AND CASE WHEN holds_lane THEN true ELSE false END
		FOR NO KEY UPDATE SKIP LOCKED
	) h
	WHERE EXISTS (SELECT FROM worker) AND NOT EXISTS (
		SELECT FROM unnest(r.names::bigint[]) AS n(lane_handler)
		CROSS JOIN unnest(CASE WHEN r.skips THEN '{f}' ELSE '{f,t}' END::boolean[]) AS c(poisoned)
		CROSS JOIN LATERAL (
			SELECT sequence, id FROM {statuses}
			WHERE lane_handler = n.lane_handler AND lane_key = h.lane_key AND is_poisoned = c.poisoned AND completed_at IS NULL
			ORDER BY sequence, id LIMIT 1
		) p
		WHERE ` + fewNamesSQL + ` AND (p.sequence, p.id) < (h.sequence, h.id)
	)
), following AS MATERIALIZED (
	SELECT h.run, w.position, l.id, l.place FROM heads h
	CROSS JOIN LATERAL (
		SELECT place, version, position FROM (
			SELECT place, version, row_number() OVER so_far AS position, bool_and(is_free) OVER so_far AS is_next,
				sum(message_bytes) OVER so_far AS bytes
			FROM (
				SELECT s.* FROM unnest(h.names) AS n(lane_handler)
				CROSS JOIN unnest(h.counting) AS c(poisoned)
				CROSS JOIN LATERAL (
					SELECT * FROM (
						SELECT {place} AS place, version, sequence, id, message_bytes, handler_key = h.handler_key AND NOT is_poisoned
							AND processing_started_at IS NULL AND abandoned_count = 0 AND interrupted_count = 0
							AND (next_attempt_at IS NULL OR next_attempt_at <= $1::timestamptz) AS is_free
						FROM {statuses}
						WHERE lane_handler = n.lane_handler AND lane_key = h.lane_key AND is_poisoned = c.poisoned
							AND completed_at IS NULL AND (sequence, id) > (h.sequence, h.id)
						ORDER BY sequence, id
						LIMIT {most}
					) most
					LIMIT h.quota
				) s
				WHERE ` + fewNamesSQL + `
				ORDER BY s.sequence, s.id
				LIMIT h.quota
			) s
			WINDOW so_far AS (ORDER BY sequence, id ROWS UNBOUNDED PRECEDING)
		) s
		WHERE is_next AND s.bytes <= h.bytes
		ORDER BY position
	) w
	CROSS JOIN LATERAL (
		SELECT id, {place} AS place FROM {statuses} WHERE {at place} = w.place AND version = w.version FOR NO KEY UPDATE SKIP LOCKED
	) l
), ours AS MATERIALIZED (
	SELECT run, position, id, place FROM (
		SELECT *, row_number() OVER (PARTITION BY run ORDER BY position) AS number FROM following
	) f
	WHERE number = position
), claimed AS (
	UPDATE {statuses} SET processing_started_at = $1::timestamptz, worker_id = $2::text::uuid, version = version + 1,
		is_waiting = false
	WHERE {at place} = ANY (ARRAY(SELECT place FROM ours))
	RETURNING ` + claimColumnsSQL + `
)` + claimResultSQL + `
FROM claimed c JOIN ours r ON r.id = c.id LEFT JOIN {messages} m ON m.number = c.message_number
ORDER BY r.run, r.position`

// releaseWaitingSQL uses the index on waiting rows, and finds each again by its {place}. It skips rows that another
// transaction has locked, since they are changing anyway.
const releaseWaitingSQL = `
WITH released AS MATERIALIZED (
	SELECT s.place FROM unnest($1::text[]) AS k(handler_key)
	CROSS JOIN LATERAL (
		SELECT {place} AS place FROM {statuses} WHERE handler_key = k.handler_key AND is_waiting ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
	) s
	LIMIT $2
)
UPDATE {statuses} SET is_waiting = false, version = version + 1 WHERE {at place} = ANY (ARRAY(SELECT place FROM released))`

func (p *Store) AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error) {
	advanced, err := p.ClaimNext(ctx, "", requests, now)
	return advanced.More, err
}

func (p *Store) ClaimNext(
	ctx context.Context, workerID string, requests []store.LaneRequest, now time.Time,
) (advanced store.Claimed, err error) {
	if len(requests) == 0 {
		return advanced, nil
	}
	if err := p.choose(ctx, p.Pool(ctx)); err != nil {
		return advanced, base.Doing("advance lanes", err)
	}
	n := len(requests)
	names, lanes, skips, claims := make([]string, n), make([]int64, n), make([]bool, n), make([]string, n)
	for i, request := range requests {
		names[i], lanes[i], skips[i] = numbers(request.Handlers), request.Key, request.SkipPoisoned
		claims[i] = request.ClaimKey
	}
	text := func() string { return p.Text(advanceSQL) }
	rows, err := p.claimOrdered(ctx, n, text, names, lanes, skips, now.UTC(), orNull(workerID), claims)
	if err != nil {
		return advanced, base.Doing("advance lanes", err)
	}
	for _, row := range rows {
		if row.Version == 0 { // a handler of which a row is free
			advanced.More = append(advanced.More, row.HandlerKey)
		} else {
			advanced.Claims = append(advanced.Claims, row)
		}
	}
	base.SortClaims(advanced.Claims)
	advanced.More = base.Distinct(advanced.More)
	return advanced, nil
}

func (p *Store) ClaimRuns(
	ctx context.Context, workerID string, runs []store.RunRequest, now time.Time,
) ([]store.Claim, error) {
	n := len(runs)
	if n == 0 {
		return nil, nil
	}
	heads, keys, names := make([]string, n), make([]string, n), make([]string, n)
	versions, quotas, bytes, skips := make([]int64, n), make([]int64, n), make([]int64, n), make([]bool, n)
	most, longest := 0, 0
	for i, run := range runs {
		heads[i], versions[i], keys[i], names[i] = run.Head.StatusID, run.Head.Version, run.ClaimKey, numbers(run.Handlers)
		skips[i], quotas[i], bytes[i] = run.SkipPoisoned, int64(run.Limit), run.EndsAt()
		most, longest = most+run.Limit, max(longest, run.Limit)
	}
	text := func() string { return p.bounded(runsSQL, longest) }
	claims, err := p.claimOrdered(ctx, most, text, now.UTC(), orNull(workerID), heads, versions, keys, names, skips,
		quotas, bytes)
	return claims, base.Doing("claim runs of lanes", err)
}

// claimOrdered runs a claim of rows with lanes, and again if another claim took the same lane at the same moment.
func (p *Store) claimOrdered(ctx context.Context, most int, text func() string, args ...any) ([]store.Claim, error) {
	for attempt := 1; ; attempt++ {
		pool := p.Pool(ctx)
		rows, err := readClaims(ctx, pool, most, text(), args...)
		if err == nil || attempt == base.ClaimAttempts || ctx.Err() != nil ||
			!store.IsUniqueViolation(err) && !store.Collided(err) {
			return rows, err
		}
	}
}

// orNull returns NULL for the ID of no worker.
func orNull(workerID string) *string {
	if workerID == "" {
		return nil
	}
	return &workerID
}
