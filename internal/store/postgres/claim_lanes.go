package postgres

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// claimLanesSQL is the claim for requests in which some handlers are ordered. "plain" does what claimSQL does, "heads"
// does the same for keys with lanes, and "passed" has the rows that heads passed over.
//
// Heads reads a window of the key's due rows by the due index. It judges the first row of each lane in the window by
// the index on lanes. It locks by place the rows that are first in their whole lane, and stops as soon as it has
// enough. Most claims find enough in the near part of the window, and the far part is not read. Nothing is locked
// before it is judged: another claimer takes the next row instead of waiting. A row that changed after it was judged
// has another version and place, and is left alone. NOT EXISTS stays inside OR on purpose: by itself it could be
// planned as a join over whole tables, after the lock.
//
// Each lane is judged once and not once per row of the window. A lookup in the index on lanes begins at the front of
// the lane, where the completed rows were. As long as some transaction in the database is older than their completion
// (for hours, if it is a dump's), each lookup passes all of these rows.
//
// Two claimers can judge by different snapshots. Mostly both snapshots have the same first row of the lane, and its
// lock decides. But this can happen:
//
//  1. Two claimers take snapshots. In between, an operator puts a row before one that is being claimed: retries one
//     that SkipPoisoned has skipped, or runs a completed one again.
//  2. Each claimer takes another one of the two rows for the first.
//  3. The second claim meets the unique index on claimed lanes, waits for the first one's commit,
//     and fails.
//  4. It is retried, and the next snapshot shows the first claim.
//
// Rows that were passed over stay in the due index while there are no more of them than may be claimed: they cost one
// lookup each. If there are more, they are marked as waiting, and no claim reads them any more until AdvanceLanes
// releases them. Where runs are claimed this is so only if the claim finds no row: see store.KeyLimit.
const claimLanesSQL = lanesFoundSQL + `, claimed AS (
	UPDATE {statuses} SET processing_started_at = $3::timestamptz, worker_id = $4::text::uuid, version = version + 1,
		holds_lane = lane_key IS NOT NULL AND handler_key = ANY ($5::text[])
	WHERE {at place} = ANY (ARRAY(SELECT place FROM plain UNION ALL SELECT place FROM within_bytes))
	RETURNING ` + claimColumnsSQL + `
), marked AS (
	UPDATE {statuses} SET is_waiting = true, version = version + 1
	WHERE {at place} = ANY (ARRAY(SELECT place FROM waiting))
	RETURNING handler_key, lane_handler, lane_key
)` + claimResultSQL + `
FROM (
	SELECT * FROM claimed
	UNION ALL
	SELECT DISTINCT ` + noClaimSQL + `, lane_handler, lane_key FROM marked
) c LEFT JOIN {messages} m ON m.number = c.message_number`

// claimLanesAtOnceSQL is claimLanesSQL for engines that change a table once in a statement. It finds rows by the array
// of their places, however many the planner expects. A row that changes at this moment is checked again with its own
// row of "targets". To read "waiting" for that would run the whole search again.
const claimLanesAtOnceSQL = lanesFoundSQL + `, targets AS MATERIALIZED (
	SELECT place, false AS marks FROM plain
	UNION ALL
	SELECT place, false FROM within_bytes
	UNION ALL
	SELECT place, true FROM waiting
), changed AS (
	UPDATE {statuses} SET processing_started_at = CASE WHEN NOT marks THEN $3::timestamptz END,
		worker_id = CASE WHEN NOT marks THEN $4::text::uuid END, version = version + 1,
		holds_lane = NOT marks AND lane_key IS NOT NULL AND handler_key = ANY ($5::text[]), is_waiting = marks
	FROM targets t
	WHERE {at place} = ANY (ARRAY(SELECT place FROM targets)) AND {place} = t.place
	RETURNING ` + claimColumnsSQL + `, marks
)` + claimResultSQL + `
FROM (
	SELECT ` + claimedSQL + ` FROM changed WHERE NOT marks
	UNION ALL
	SELECT DISTINCT ` + noClaimSQL + `, lane_handler, lane_key FROM changed WHERE marks
) c LEFT JOIN {messages} m ON m.number = c.message_number`

// claimedSQL are the columns that claimColumnsSQL returns.
const claimedSQL = `id, message_number, message_id, handler_key, version, error_count, abandoned_count, interrupted_count,
		requeued_count, message_bytes, created_at, due, lane_handler, lane_key`

// noClaimSQL are the columns, but for the lane's, of a result that is no claim: its version is 0.
const noClaimSQL = `'00000000-0000-0000-0000-000000000000'::uuid, 0, '', handler_key, 0, 0, 0, 0, 0, 0,
		'epoch'::timestamptz, 'epoch'::timestamptz`

// lanesFoundSQL finds and locks the rows that claimLanesSQL claims and marks.
const lanesFoundSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $4::text::uuid AND released_at IS NULL {claims lock}
), plain AS MATERIALIZED (
	SELECT s.place FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $10::timestamptz[]), (SELECT $11::text[]),
		(SELECT $12::bigint[]), (SELECT $13::bigint[])) AS k(handler_key, quota, after_due, after_id, at_least, bytes)
	CROSS JOIN LATERAL (` + withinBytesSQL + `) s
	WHERE ` + fewKeysSQL + ` AND ($4::text IS NULL OR EXISTS (SELECT FROM worker))
), keys AS MATERIALIZED (
	SELECT handler_key, quota, names::bigint[] AS names, skips, at_least, bytes, runs, true AS poisoned, 2 * quota + $9::bigint AS reach
	FROM unnest((SELECT $5::text[]), (SELECT $6::bigint[]), (SELECT $7::text[]), (SELECT $8::boolean[]), (SELECT $14::bigint[]),
		(SELECT $15::bigint[]), (SELECT $16::boolean[])) AS k(handler_key, quota, names, skips, at_least, bytes, runs)
	WHERE ` + fewKeysSQL + ` AND ($4::text IS NULL OR EXISTS (SELECT FROM worker))
), heads AS MATERIALIZED (
	SELECT k.handler_key, h.place, h.position, h.message_bytes FROM keys k
	CROSS JOIN LATERAL (
		SELECT l.place, w.position, w.message_bytes FROM (VALUES (0, 2 * k.quota), (2 * k.quota, k.reach)) AS part(known, reach)
		CROSS JOIN LATERAL (` + windowSQL + `) w
		CROSS JOIN LATERAL (` + lockSeenSQL + `) l
		WHERE w.position > part.known AND ` + headSQL + `
		LIMIT k.quota
	) h
), within_bytes AS MATERIALIZED (
	SELECT s.place FROM keys k
	CROSS JOIN LATERAL (
		SELECT b.place FROM (
			SELECT d.place, row_number() OVER w AS position, sum(d.message_bytes) OVER w - d.message_bytes AS before
			FROM (SELECT place, message_bytes FROM heads WHERE handler_key = k.handler_key ORDER BY position) d
			WINDOW w AS (ROWS UNBOUNDED PRECEDING)
		) b
		WHERE b.position <= k.at_least OR b.before < k.bytes
	) s
), reached AS MATERIALIZED (
	SELECT k.handler_key, k.quota, k.names, k.skips, k.poisoned, k.runs,
		CASE WHEN k.runs AND h.found > 0 THEN 0 WHEN h.found < k.quota THEN k.reach WHEN h.last - h.found > k.quota THEN h.last ELSE 0 END AS reach
	FROM keys k
	CROSS JOIN LATERAL (SELECT count(*) AS found, max(position) AS last FROM heads WHERE handler_key = k.handler_key) h
), passed AS MATERIALIZED (
	SELECT w.place, w.version, k.quota, count(*) OVER (PARTITION BY k.handler_key) AS passed FROM reached k
	CROSS JOIN LATERAL (VALUES (k.reach)) AS part(reach)
	CROSS JOIN LATERAL (` + windowSQL + `) w
	WHERE NOT ` + headSQL + `
), waiting AS MATERIALIZED (
	SELECT l.place FROM passed w CROSS JOIN LATERAL (` + lockSeenSQL + `) l WHERE w.passed > w.quota
)`

// windowSQL reads the due index as far as part.reach. Which row leads its lane within the window is known without
// another read of the table: the other rows of the lane in the window come after it, even if the lane has more rows.
// All names of the handler count as one lane. For the two limits, see bounded.
const windowSQL = `
			SELECT d.*, lane_key IS NULL OR 1 = row_number() OVER (
				PARTITION BY lane_key, CASE WHEN lane_handler = ANY (k.names) THEN NULL ELSE lane_handler END ORDER BY sequence, id
			) AS leads
			FROM (
				SELECT * FROM (
					SELECT {place} AS place, version, id, sequence, lane_handler, lane_key, message_bytes,
						row_number() OVER (ORDER BY COALESCE(next_attempt_at, created_at), id) AS position
					FROM {statuses}
					WHERE ` + isDueSQL + `
					ORDER BY COALESCE(next_attempt_at, created_at), id
					LIMIT {most}
				) most
				LIMIT part.reach
			) d
			ORDER BY position`

// lockSeenSQL locks a row by its place and version.
const lockSeenSQL = `
			SELECT {place} AS place FROM {statuses} WHERE {at place} = w.place AND version = w.version FOR NO KEY UPDATE SKIP LOCKED`

// headSQL is true if row w is first in its lane, under any of the handler's names, and no row of the lane is claimed.
// It uses the index on lanes and the index on claimed lanes. k.poisoned is always true. With a literal instead, the
// planner would choose the index on poisoned rows while they are few, and they need not stay few.
//
// The form of each lookup forces its index, under any statistics. For EXISTS in a table of which nearly all is one
// lane, the planner expects to meet a row of the lane at once, and would read the table from its beginning. To find a
// lane's first row, or to count its claimed rows, all of the table would have to be read.
const headSQL = `(w.lane_key IS NULL OR w.leads AND NOT (
			EXISTS (
				SELECT FROM unnest(` + namesSQL + `) AS n(lane_handler)
				CROSS JOIN LATERAL (
					SELECT sequence, id FROM {statuses}
					WHERE lane_handler = n.lane_handler AND lane_key = w.lane_key AND NOT is_poisoned AND completed_at IS NULL
					ORDER BY sequence, id LIMIT 1
				) p
				WHERE ` + fewNamesSQL + ` AND (p.sequence, p.id) < (w.sequence, w.id)
			) OR NOT k.skips AND EXISTS (
				SELECT FROM unnest(` + namesSQL + `) AS n(lane_handler)
				CROSS JOIN LATERAL (
					SELECT sequence, id FROM {statuses}
					WHERE lane_handler = n.lane_handler AND lane_key = w.lane_key AND is_poisoned = k.poisoned AND completed_at IS NULL
					ORDER BY sequence, id LIMIT 1
				) p
				WHERE ` + fewNamesSQL + ` AND (p.sequence, p.id) < (w.sequence, w.id)
			) OR 0 < (
				SELECT count(*) FROM {statuses} p
				WHERE p.lane_handler = ANY (` + namesSQL + `) AND p.lane_key = w.lane_key AND p.holds_lane
			)
		))`

// namesSQL are the names under which row w's lane may have rows: the handler's names, and the row's.
const namesSQL = `CASE WHEN w.lane_handler = ANY (k.names) THEN k.names ELSE k.names || w.lane_handler END`

func (p *Store) claimLanes(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	var plain plainLimits
	var orderedKeys, names []string
	var orderedQuotas, atLeast, bytes []int64
	most, largest := 0, 0
	var skips, runs []bool
	rules := map[string]store.LaneRule{}
	for _, limit := range req.Limits {
		switch {
		case limit.Limit <= 0:
		case limit.Lanes == nil:
			plain.add(limit)
		default:
			most, largest = most+limit.Limit, max(largest, limit.Limit)
			rules[limit.HandlerKey] = *limit.Lanes
			orderedKeys, orderedQuotas = append(orderedKeys, limit.HandlerKey), append(orderedQuotas, int64(limit.Limit))
			atLeast, bytes = append(atLeast, int64(limit.AtLeast)), append(bytes, limit.EndsAt())
			names, skips = append(names, numbers(limit.Lanes.Handlers)), append(skips, limit.Lanes.SkipPoisoned)
			runs = append(runs, limit.Runs)
		}
	}
	statement := claimLanesSQL
	if p.isPortable() {
		statement = claimLanesAtOnceSQL
	}
	statement, args := within(req.Within, statement, plain.keys, plain.quotas, req.Now.UTC(), orNull(req.WorkerID),
		orderedKeys, orderedQuotas, names, skips, base.LaneWindow, plain.dues, plain.ids, plain.atLeast, plain.bytes,
		atLeast, bytes, runs)
	text := func() string { return p.bounded(statement, max(plain.largest, 2*largest+base.LaneWindow)) }
	rows, err := p.claimOrdered(ctx, plain.most+most, text, args...)
	if err != nil {
		return store.Claimed{}, err
	}
	base.SortClaims(rows)
	result := store.Claimed{More: plain.short(rows)}
	var requests []store.LaneRequest
	for _, row := range rows {
		if row.Version == 0 { // a lane with marked rows
			requests = append(requests, rules[row.HandlerKey].Request(*row.Lane))
			result.More = append(result.More, row.HandlerKey)
			continue
		}
		result.Claims = append(result.Claims, row)
	}
	// The row before a marked row may have ended since the statement's snapshot, and the transaction that ended it may
	// have checked the lane before the marks were visible.
	free, err := p.AdvanceLanes(ctx, requests, req.Now)
	result.LanesErr = err
	result.More = append(result.More, base.Ended(req.Limits, result.Claims)...)
	result.More = base.Distinct(append(result.More, free...))
	return result, nil
}
