package postgres

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// By the due index, per key from its oldest due row: another key's backlog and
// rows due in the future are never looked at. The rows found are updated by
// their place (a TID scan), whatever the planner thinks of their number: they
// are locked by this very statement and cannot move. A row that was changed
// between this statement's snapshot and its lock is new at another place,
// which the snapshot does not show: it stays unclaimed until the next claim.
// Messages by the unique index on their numbers, which ascend as the rows do.
//
// The worker's row is locked, not just read. Otherwise: this statement reads the
// row as alive; a sweeper marks it released, looks for its claims and finds
// none, because these are not committed yet; these commit, and belong to a
// worker that is never swept again. With the lock MarkReleased does nothing
// beside this statement, and finds the claims the next time. A heartbeat, which
// changes no key, does not wait for the lock.
const claimSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $4::text::uuid AND released_at IS NULL FOR KEY SHARE
), due AS MATERIALIZED (
	SELECT s.place FROM unnest($1::text[], $2::bigint[]) AS k(handler_key, quota)
	CROSS JOIN LATERAL (` + dueOfKeySQL + `) s
	WHERE EXISTS (SELECT FROM worker)
)` + claimDueSQL

// The same without a worker (contract 5.14).
const claimManualSQL = `
WITH due AS MATERIALIZED (
	SELECT s.place FROM unnest($1::text[], $2::bigint[]) AS k(handler_key, quota)
	CROSS JOIN LATERAL (` + dueOfKeySQL + `) s
	WHERE $4::text IS NULL
)` + claimDueSQL

// A new status is due whatever the time, one to be tried again by the injected
// clock. So that both are one range of the index, the range reaches to the
// later of the two clocks: new statuses are never beyond the database's, and
// what a claimer whose clock is behind must leave is filtered.
const dueOfKeySQL = `
		SELECT ctid AS place FROM {statuses}
		WHERE ` + isDueSQL + `
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT k.quota
		FOR NO KEY UPDATE SKIP LOCKED`

const isDueSQL = `handler_key = k.handler_key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= GREATEST($3::timestamptz, statement_timestamp())
			AND CASE WHEN processing_started_at IS NOT NULL OR next_attempt_at > $3::timestamptz THEN false ELSE true END`

// CASE hides from the planner what it would misjudge. Statistics made while
// every row was claimed, or waited for its next attempt, say that the plain
// condition is never true: then reading and sorting the whole table seems no
// dearer than walking an index to its end, and each claim would do so. What it
// cannot judge is true of every second row to it.
const unclaimedSQL = `CASE WHEN processing_started_at IS NULL THEN true ELSE false END`

const claimDueSQL = `, claimed AS (
	UPDATE {statuses} SET processing_started_at = $3::timestamptz, worker_id = $4::text::uuid, version = version + 1
	WHERE ctid = ANY (ARRAY(SELECT place FROM due))
	RETURNING ` + claimColumnsSQL + `
)` + claimResultSQL + `
FROM claimed c LEFT JOIN {messages} m ON m.number = c.message_number`

const claimColumnsSQL = `id, message_number, message_id, handler_key, version, ctid::text AS place, error_count, abandoned_count, requeued_count,
		created_at, COALESCE(next_attempt_at, created_at) AS due, lane_handler, lane_key`

const claimResultSQL = `
SELECT c.id, c.message_id, c.handler_key, c.version, c.place, c.error_count, c.abandoned_count, c.requeued_count, c.created_at, c.due,
	c.lane_handler, c.lane_key,
	m.number, m.namespace, m.transport_name, m.type, m.source, m.content, m.content_type, m.serialized_properties, m.ordering_key, m.received_at`

// By the due index: per key the first row behind now.
const nextDueSQL = `
SELECT min(s.due) FROM unnest($1::text[]) AS k(handler_key)
CROSS JOIN LATERAL (
	SELECT COALESCE(next_attempt_at, created_at) AS due FROM {statuses}
	WHERE handler_key = k.handler_key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
		AND COALESCE(next_attempt_at, created_at) > $2::timestamptz AND ` + unclaimedSQL + `
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT 1
) s`

// By the unique index on (message_number, handler_key). LATERAL, with OFFSET to
// keep it, as in acceptKeysSQL.
const siblingsSQL = `
SELECT s.* FROM unnest($1::bigint[]) AS k(number)
CROSS JOIN LATERAL (
	SELECT message_number, id, message_id, handler_key, version, ctid::text, error_count, abandoned_count, lane_handler, lane_key,
		processing_started_at IS NOT NULL, is_poisoned, completed_at IS NOT NULL, outcome
	FROM {statuses} WHERE message_number = k.number AND handler_key = ANY ($2::text[]) OFFSET 0
) s
ORDER BY s.message_number, s.handler_key`

func (p *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	if base.Ordered(req) {
		claimed, err := p.claimLanes(ctx, req)
		return claimed, base.Doing("claim", err)
	}
	keys, quotas := make([]string, 0, len(req.Limits)), make([]int64, 0, len(req.Limits))
	for _, limit := range req.Limits {
		if limit.Limit > 0 {
			keys, quotas = append(keys, limit.HandlerKey), append(quotas, int64(limit.Limit))
		}
	}
	if len(keys) == 0 {
		return store.Claimed{}, nil
	}
	statement, worker := claimSQL, &req.WorkerID
	if req.WorkerID == "" {
		statement, worker = claimManualSQL, nil
	}
	claims, err := readClaims(ctx, p.Pool(ctx), p.Text(statement), keys, quotas, req.Now.UTC(), worker)
	base.SortClaims(claims)
	return store.Claimed{Claims: claims}, base.Doing("claim", err)
}

func scanClaim(rows *sql.Rows, c *store.Claim) error {
	var m base.StoredMessage
	var lane base.LaneColumns
	err := rows.Scan(&c.StatusID, &c.MessageID, &c.HandlerKey, &c.Version, &c.Locator, &c.ErrorCount, &c.AbandonedCount,
		&c.RequeuedCount, &c.CreatedAt, &c.Due, &lane.Handler, &lane.Key,
		&m.Number, &m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content, &m.ContentType, &m.Properties,
		&m.OrderingKey, &m.ReceivedAt)
	c.CreatedAt, c.Due = c.CreatedAt.UTC(), c.Due.UTC()
	c.Lane, c.Message = lane.Lane(), m.Message(c.MessageID)
	return err
}

func (p *Store) NextDue(ctx context.Context, keys []string, now time.Time) (time.Time, bool, error) {
	found, err := store.Query(ctx, p.Pool(ctx), p.Text(nextDueSQL), store.Value[sql.NullTime], keys, now.UTC())
	if err != nil || len(found) == 0 || !found[0].Valid {
		return time.Time{}, false, base.Doing("find the next due status", err)
	}
	return found[0].Time.UTC(), true, nil
}

func (p *Store) Siblings(ctx context.Context, messageNumbers []int64, keys []string) ([]store.Sibling, error) {
	siblings, err := store.Query(ctx, p.Pool(ctx), p.Text(siblingsSQL), base.ScanSibling, messageNumbers, keys)
	return siblings, base.Doing("read sibling statuses", err)
}
