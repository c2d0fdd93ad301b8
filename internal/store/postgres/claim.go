package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// claimSQL is the claim of a worker without ordered handlers. claimLanesSQL is the claim with ordered handlers,
// claimManualSQL the claim without a worker: keep them alike.
//
// It reads the due index, per key from its oldest due row. It never reads another key's backlog nor rows that are due
// in the future. It updates the rows by their {place} (a TID scan), even if the planner expects many rows: this very
// statement has locked them, so they cannot move. A row that changed between this statement's snapshot and its lock has
// moved to another place, which the snapshot does not show. It stays unclaimed until the next claim. In the portable
// profile the place is the ID, and the row is found by handler_statuses_open, as it is now. Messages are read by the
// unique index on their numbers, which ascend as the rows do.
//
// See claimsLock for why it is not enough to read the worker's row.
const claimSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $4::text::uuid AND released_at IS NULL {claims lock}
), due AS MATERIALIZED (
	SELECT s.place FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $5::timestamptz[]), (SELECT $6::text[]),
		(SELECT $7::bigint[]), (SELECT $8::bigint[])) AS k(handler_key, quota, after_due, after_id, at_least, bytes)
	CROSS JOIN LATERAL (` + withinBytesSQL + `) s
	WHERE ` + fewKeysSQL + ` AND EXISTS (SELECT FROM worker)
)` + claimDueSQL

// claimManualSQL is claimSQL without a worker, for ProcessPending.
const claimManualSQL = `
WITH due AS MATERIALIZED (
	SELECT s.place FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $5::timestamptz[]), (SELECT $6::text[]),
		(SELECT $7::bigint[]), (SELECT $8::bigint[])) AS k(handler_key, quota, after_due, after_id, at_least, bytes)
	CROSS JOIN LATERAL (` + withinBytesSQL + `) s
	WHERE ` + fewKeysSQL + ` AND $4::text IS NULL
)` + claimDueSQL

// withinBytesSQL ends the claim of one key at its bytes. The rows that it leaves stay locked until the statement ends.
// The window has no ORDER BY, because the rows come in their order, and a sort would cost more than it does.
const withinBytesSQL = `
	SELECT b.place FROM (
		SELECT d.place, row_number() OVER w AS position, sum(d.message_bytes) OVER w - d.message_bytes AS before
		FROM (` + dueOfKeySQL + `) d
		WINDOW w AS (ROWS UNBOUNDED PRECEDING)
	) b
	WHERE b.position <= k.at_least OR b.before < k.bytes`

// fewKeysSQL is always true. The planner takes it for rarely true, and so expects one key where it would expect ten. It
// multiplies the cost of a key by their number, and PostgreSQL compiles (jit) a statement that seems expensive, which
// takes longer than the claim.
const fewKeysSQL = `CASE WHEN k.handler_key IS NULL THEN 1 ELSE 0 END = 0`

// fewNamesSQL is fewKeysSQL for a handler's names.
const fewNamesSQL = `CASE WHEN n.lane_handler IS NULL THEN 1 ELSE 0 END = 0`

// dueOfKeySQL finds and locks the due rows of one key. A new status is due at any time, while a retry is due by the
// claimer's clock, which follows the database's unless it is a test's. To make both one range of the index, the range
// reaches up to the later of the two clocks. New statuses are never after the database's clock. Retries that are not
// due yet by the claimer's are filtered out.
//
// Claimed rows stay in the index until they are completed, and every claim that begins at the longest due row walks
// over the claimed rows of all workers. Rows that another claim is just claiming are worse. To check them costs as much
// as to claim them, and if their claim was committed after our snapshot, we would lock them and write that to the log.
// So a claim of a backlog begins where the last one ended, and takes only rows that are not {touched}: their xmax is
// zero, so they were not locked or changed since they were written. A row whose lock has ended keeps its xmax, so that
// claims without after_due, which take any row, must come in between. The portable profile takes any row.
//
// For the two limits, see bounded. Rows are locked one by one, until the outer limit has its rows.
const dueOfKeySQL = `
		SELECT place, message_bytes FROM (
			SELECT {place} AS place, message_bytes FROM {statuses}
			WHERE ` + isDueSQL + `
				AND (COALESCE(next_attempt_at, created_at), id) >
					(COALESCE(k.after_due, '-infinity'), COALESCE(k.after_id::uuid, '00000000-0000-0000-0000-000000000000'))
				AND CASE WHEN k.after_due IS NOT NULL AND {touched} THEN false ELSE true END
			ORDER BY COALESCE(next_attempt_at, created_at), id
			LIMIT {most}
			FOR NO KEY UPDATE SKIP LOCKED
		) most
		LIMIT k.quota`

// isDueSQL is the condition of a due row. unclaimedSQL says why part of it is in a CASE.
const isDueSQL = `handler_key = k.handler_key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= GREATEST($3::timestamptz, statement_timestamp())
			AND CASE WHEN processing_started_at IS NOT NULL OR next_attempt_at > $3::timestamptz THEN false ELSE true END`

// unclaimedSQL uses CASE to hide the condition from the planner, which would misjudge it. Statistics made while every
// row was claimed, or waited for its next attempt, say that the plain condition is never true. Reading and sorting the
// whole table then seems no more expensive than walking an index to its end, and each claim would do so. For a
// condition that it cannot judge, the planner assumes that every second row fulfills it.
const unclaimedSQL = `CASE WHEN processing_started_at IS NULL THEN true ELSE false END`

const claimDueSQL = `, claimed AS (
	UPDATE {statuses} SET processing_started_at = $3::timestamptz, worker_id = $4::text::uuid, version = version + 1
	WHERE {at place} = ANY (ARRAY(SELECT place FROM due))
	RETURNING ` + claimColumnsSQL + `
)` + claimResultSQL + `
FROM claimed c LEFT JOIN {messages} m ON m.number = c.message_number`

const claimColumnsSQL = `id, message_number, message_id, handler_key, version, error_count, abandoned_count, interrupted_count,
		requeued_count, message_bytes, created_at, COALESCE(next_attempt_at, created_at) AS due, lane_handler, lane_key`

const claimResultSQL = `
SELECT c.id, c.message_id, c.handler_key, c.version, c.error_count, c.abandoned_count, c.interrupted_count, c.requeued_count,
	c.message_bytes, c.created_at, c.due, c.lane_handler, c.lane_key,
	c.message_number, m.namespace, m.transport_name, m.type, m.source, m.content, m.content_type, m.serialized_properties, m.ordering_key, m.received_at`

// nextDueSQL uses the due index: per key the first row after now.
const nextDueSQL = `
SELECT min(s.due) FROM unnest($1::text[]) AS k(handler_key)
CROSS JOIN LATERAL (
	SELECT COALESCE(next_attempt_at, created_at) AS due FROM {statuses}
	WHERE handler_key = k.handler_key AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
		AND COALESCE(next_attempt_at, created_at) > $2::timestamptz AND ` + unclaimedSQL + `
	ORDER BY COALESCE(next_attempt_at, created_at), id
	LIMIT 1
) s`

// siblingsSQL uses handler_statuses_pkey. For LATERAL and OFFSET, see acceptKeysSQL, for the sub-selects
// completionsSQL.
const siblingsSQL = `
SELECT s.* FROM unnest((SELECT $1::bigint[])) AS k(number)
CROSS JOIN LATERAL (
	SELECT message_number, id, message_id, handler_key, version, error_count, abandoned_count, interrupted_count,
		lane_handler, lane_key, processing_started_at IS NOT NULL, is_poisoned, completed_at IS NOT NULL, outcome
	FROM {statuses} WHERE message_number = k.number AND handler_key = ANY ((SELECT $2::text[])::text[]) OFFSET 0
) s
ORDER BY s.message_number, s.handler_key`

func (p *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	if base.Ordered(req) {
		claimed, err := p.claimLanes(ctx, req)
		return claimed, base.Doing("claim", err)
	}
	var limits plainLimits
	for _, limit := range req.Limits {
		limits.add(limit)
	}
	if len(limits.keys) == 0 {
		return store.Claimed{}, nil
	}
	statement := claimSQL
	if req.WorkerID == "" {
		statement = claimManualSQL
	}
	statement, args := within(req.Within, statement, limits.keys, limits.quotas, req.Now.UTC(), orNull(req.WorkerID),
		limits.dues, limits.ids, limits.atLeast, limits.bytes)
	claims, err := readClaims(ctx, p.Pool(ctx), limits.most, p.bounded(statement, limits.largest), args...)
	if err != nil {
		return store.Claimed{}, base.Doing("claim", err)
	}
	base.SortClaims(claims)
	more := append(limits.short(claims), base.Ended(req.Limits, claims)...)
	return store.Claimed{Claims: claims, More: base.Distinct(more)}, nil
}

// plainLimits are the limits of keys that are not ordered, as claims pass them.
type plainLimits struct {
	keys   []string
	quotas []int64
	most   int // all quotas together
	// largest is the largest quota.
	largest int
	atLeast []int64
	bytes   []int64
	// dues and ids are the places after which the claim begins, NULL for none.
	dues []*time.Time
	ids  []*string
}

func (l *plainLimits) add(limit store.KeyLimit) {
	if limit.Limit <= 0 {
		return
	}
	l.keys, l.quotas = append(l.keys, limit.HandlerKey), append(l.quotas, int64(limit.Limit))
	l.most, l.largest = l.most+limit.Limit, max(l.largest, limit.Limit)
	l.atLeast, l.bytes = append(l.atLeast, int64(limit.AtLeast)), append(l.bytes, limit.EndsAt())
	due, id := place(limit.After)
	l.dues, l.ids = append(l.dues, due), append(l.ids, id)
}

// short returns the keys that got less than their quota and were not read from their longest due row.
func (l *plainLimits) short(claims []store.Claim) (keys []string) {
	got := map[string]int64{}
	for _, c := range claims {
		got[c.HandlerKey]++
	}
	for i, key := range l.keys {
		if l.dues[i] != nil && got[key] < l.quotas[i] {
			keys = append(keys, key)
		}
	}
	return keys
}

func scanClaim(rows *sql.Rows, c *store.Claim) error {
	var m base.StoredMessage
	var lane base.LaneColumns
	err := rows.Scan(&c.StatusID, &c.MessageID, &c.HandlerKey, &c.Version, &c.ErrorCount, &c.AbandonedCount,
		&c.InterruptedCount, &c.RequeuedCount, &c.MessageBytes, &c.CreatedAt, &c.Due, &lane.Handler, &lane.Key,
		&c.MessageNumber, &m.Namespace, &m.TransportName, &m.MessageType, &m.Source, &m.Content, &m.ContentType,
		&m.Properties, &m.OrderingKey, &m.ReceivedAt)
	m.Number = sql.NullInt64{Int64: c.MessageNumber, Valid: m.Namespace.Valid}
	c.CreatedAt, c.Due = c.CreatedAt.UTC(), c.Due.UTC()
	c.Lane, c.Message = lane.Lane(), m.Message(c.MessageID)
	return err
}

func (p *Store) NextDue(ctx context.Context, keys []string, now time.Time) (time.Time, error) {
	found, err := store.Query(ctx, p.Pool(ctx), p.Text(nextDueSQL), store.Value[sql.NullTime], keys, now.UTC())
	if err != nil || len(found) == 0 || !found[0].Valid {
		return time.Time{}, base.Doing("find the next due status", err)
	}
	return found[0].Time.UTC(), nil
}

// windowRowsSQL reads a part of the due index, and each row's message by the unique index on numbers. Its limit is part
// of the text: see openClaimsSQL.
var windowRowsSQL = fmt.Sprintf(`
SELECT due, id::text, is_last, is_ours FROM (
	SELECT due, id, row_number() OVER (ORDER BY due, id) = %[1]d AS is_last,
		processing_started_at IS NULL
			AND COALESCE((SELECT m.namespace FROM {messages} m WHERE m.number = message_number), '') <> ALL ($5::text[]) AS is_ours
	FROM (
		SELECT COALESCE(next_attempt_at, created_at) AS due, id, message_number, processing_started_at FROM {statuses}
		WHERE handler_key = $1 AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= GREATEST($2::timestamptz, statement_timestamp())
			AND (COALESCE(next_attempt_at, created_at), id) >
				(COALESCE($3::timestamptz, '-infinity'), COALESCE($4::text::uuid, '00000000-0000-0000-0000-000000000000'))
		ORDER BY COALESCE(next_attempt_at, created_at), id
		LIMIT %[1]d
	) read
) judged
WHERE is_ours OR is_last`, store.WindowRows)

// within returns a claim's statement and arguments for a window. Only such claims have the conditions, so that the plan
// of all others is as it is. CASE hides the IDs from the planner, for which they would be a reason not to read the
// index of due rows.
func within(w *store.Window, statement string, args ...any) (string, []any) {
	if w == nil {
		return statement, args
	}
	n := len(args)
	condition := fmt.Sprintf(`
			AND (COALESCE(next_attempt_at, created_at), id) >
				(COALESCE($%d::timestamptz, '-infinity'), COALESCE($%d::text::uuid, '00000000-0000-0000-0000-000000000000'))
			AND (COALESCE(next_attempt_at, created_at), id) <=
				(COALESCE($%d::timestamptz, 'infinity'), COALESCE($%d::text::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
			AND CASE WHEN id IN (SELECT unnest($%d::text[])::uuid) THEN true ELSE false END`,
		n+1, n+2, n+3, n+4, n+5)
	after, afterID := place(w.After)
	end, endID := place(w.End)
	args = append(args, after, afterID, end, endID, w.StatusIDs)
	return strings.ReplaceAll(statement, isDueSQL, isDueSQL+condition), args
}

func place(p *store.Place) (due *time.Time, id *string) {
	if p == nil {
		return nil, nil
	}
	return inUTC(&p.Due), &p.StatusID
}

func (p *Store) NextWindow(
	ctx context.Context, handlerKey string, after *store.Place, leave []string, now time.Time,
) (store.Window, error) {
	due, id := place(after)
	rows, err := store.Query(ctx, p.Pool(ctx), p.Text(windowRowsSQL), base.ScanWindowRow,
		handlerKey, now.UTC(), due, id, append([]string{}, leave...)) // nil would be NULL: no row would be ours
	return base.WindowOf(after, rows), base.Doing("read a window of due statuses", err)
}
