package postgres

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// expiredSQL reads messages by the index on (received_at, number), and their statuses by handler_statuses_pkey, message
// by message. It uses LATERAL because the planner might otherwise read the whole table for a large batch. It locks
// nothing, so a message with nothing to delete costs no write, however often it is read. With partitions it reads those
// below a number. Of messages that a cleanup has forgotten (see layout.go) it deletes nothing, and reads no more than
// of others.
const expiredSQL = `
WITH walked AS MATERIALIZED (
	SELECT number, received_at FROM {messages}
	WHERE received_at < $1::timestamptz AND (received_at, number) > ($2::timestamptz, $3::bigint) AND number < $8::bigint
	ORDER BY received_at, number
	LIMIT $4
)
SELECT m.number, m.received_at, {remembered} AND (found.expired > 0 OR found.statuses = 0)
FROM walked m CROSS JOIN LATERAL (
	SELECT count(*) AS statuses, count(*) FILTER (WHERE s.completed_at < COALESCE((
		SELECT own.cutoff FROM unnest($6::text[], $7::timestamptz[]) AS own(handler_key, cutoff) WHERE own.handler_key = s.handler_key
	), $5::timestamptz)) AS expired
	FROM {statuses} s WHERE s.message_number = m.number
) found
ORDER BY m.received_at, m.number`

// cleanupLockSQL uses the unique index on the messages' numbers. It skips rows that an accept or another cleanup has
// locked. The next run comes back to that. {ids} are the messages, with partitions the slim table of their IDs.
const cleanupLockSQL = `
SELECT number FROM {ids} WHERE number = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED`

// cleanupMessagesSQL finds statuses by handler_statuses_pkey, message by message, and messages by the unique index on
// their numbers. A message's statuses are deleted with it (ON DELETE CASCADE). With partitions only its ID is.
const cleanupMessagesSQL = `
WITH finished AS MATERIALIZED (
	SELECT c.number, count(s.id) AS statuses
	FROM unnest($1::bigint[]) AS c(number)
	LEFT JOIN LATERAL (SELECT id, handler_key, completed_at FROM {statuses} WHERE message_number = c.number OFFSET 0) s ON true
	LEFT JOIN unnest($3::text[], $4::timestamptz[]) AS own(handler_key, cutoff) ON own.handler_key = s.handler_key
	GROUP BY c.number
	HAVING count(*) FILTER (WHERE s.id IS NOT NULL AND NOT COALESCE(s.completed_at < COALESCE(own.cutoff, $2::timestamptz), false)) = 0
), deleted AS (
	DELETE FROM {ids} WHERE number = ANY (ARRAY(SELECT number FROM finished)) RETURNING number
)
SELECT count(*), COALESCE(sum(f.statuses), 0)::bigint FROM deleted d JOIN finished f ON f.number = d.number`

// cleanupStatusesSQL uses handler_statuses_pkey. For the sub-select, see completeUnlockedSQL.
const cleanupStatusesSQL = `
DELETE FROM {statuses} s
WHERE s.message_number = ANY ((SELECT $1::bigint[])::bigint[])
	AND s.completed_at < COALESCE((
		SELECT own.cutoff FROM unnest($3::text[], $4::timestamptz[]) AS own(handler_key, cutoff) WHERE own.handler_key = s.handler_key
	), $2::timestamptz) AND {status remembered}`

// clockSQL reads no table.
const clockSQL = `SELECT COALESCE({latest}, $1::timestamptz)`

func (p *Store) Clock(ctx context.Context, now time.Time) (time.Time, error) {
	return p.ClockIn(ctx, p.Pool(ctx), now)
}

func (p *Store) ClockIn(ctx context.Context, pool gorm.ConnPool, now time.Time) (time.Time, error) {
	times, err := store.Query(ctx, pool, p.Text(clockSQL), store.Value[time.Time], now.UTC())
	if err != nil {
		return time.Time{}, base.Doing("read the database's clock", err)
	}
	return times[0].UTC(), nil
}

func (p *Store) Expired(ctx context.Context, req store.CleanupRequest) (store.ExpiredBatch, error) {
	keys, cutoffs := ownCutoffs(req)
	bound, err := p.walkBound(ctx, req)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired partitions", err)
	}
	pool, err := p.largePool(ctx)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired messages", err)
	}
	candidates, err := store.Query(ctx, pool, p.Text(expiredSQL), func(rows *sql.Rows, c *base.Candidate) error {
		return rows.Scan(&c.MessageNumber, &c.ReceivedAt, &c.Expired)
	}, base.WalkEnd(req).UTC(), req.After.ReceivedAt.UTC(), req.After.MessageNumber, req.Limit, req.Cutoff.UTC(), keys,
		cutoffs, bound)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired messages", err)
	}
	return base.Walked(req, candidates), nil
}

// withoutJIT is Transaction for statements about thousands of rows (see store.Singles.WithoutJIT).
func (p *Store) withoutJIT(ctx context.Context, work func(gorm.ConnPool) error) error {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil {
		return err
	}
	if p.isPortable() {
		return p.Transaction(ctx, work)
	}
	return p.Transaction(ctx, func(pool gorm.ConnPool) error {
		if _, err := store.Exec(ctx, pool, `SET LOCAL jit = off`); err != nil {
			return err
		}
		return work(pool)
	})
}

func ownCutoffs(r store.CleanupRequest) ([]string, []time.Time) {
	keys, cutoffs := make([]string, len(r.HandlerCutoffs)), make([]time.Time, len(r.HandlerCutoffs))
	for i, own := range r.HandlerCutoffs {
		keys[i], cutoffs[i] = own.HandlerKey, own.Cutoff.UTC()
	}
	return keys, cutoffs
}

// Cleanup uses several statements, each with its own snapshot. A single statement would delete a new status. An accept
// that adds a status to a known message only locks the message's row, which creates no new version of it:
//
//  1. A single statement that selects and deletes takes its snapshot and waits for that lock.
//  2. The accept commits its new status.
//  3. The statement checks the message's row again, finds it unchanged, and does not read the
//     statuses again. The cascade deletes the new status.
//
// Here the locks are taken first, and messages that an accept holds are skipped. From then on every accept of these
// messages waits for this transaction. All rows that an accept added before are committed, so the next statement's
// snapshot shows them.
func (p *Store) Cleanup(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	found, err := p.Expired(ctx, req)
	if err != nil {
		return store.CleanupResult{Next: req.After}, err
	}
	result := store.CleanupResult{Next: found.Next, Done: found.Done}
	if len(found.MessageNumbers) == 0 {
		return result, nil
	}
	keys, cutoffs := ownCutoffs(req)
	err = p.withoutJIT(ctx, func(pool gorm.ConnPool) error {
		numbers, err := store.Query(ctx, pool, p.Text(cleanupLockSQL), store.Value[int64], found.MessageNumbers)
		result.Passed = int64(len(found.MessageNumbers) - len(numbers))
		if err != nil || len(numbers) == 0 {
			return err
		}
		counts, err := store.Query(ctx, pool, p.Text(cleanupMessagesSQL), func(rows *sql.Rows, c *[2]int64) error {
			return rows.Scan(&c[0], &c[1])
		}, numbers, req.Cutoff.UTC(), keys, cutoffs)
		if err != nil {
			return err
		}
		result.Messages, result.Statuses = counts[0][0], counts[0][1]
		if err := p.deleteForgotten(ctx, pool, numbers); err != nil {
			return err
		}
		if result.Messages == int64(len(numbers)) {
			return nil
		}
		deleted, err := store.Exec(ctx, pool, p.Text(cleanupStatusesSQL), numbers, req.Cutoff.UTC(), keys, cutoffs)
		result.Statuses += deleted
		return err
	})
	if err != nil {
		return store.CleanupResult{Next: req.After}, base.Doing("cleanup", err)
	}
	return result, nil
}

// expiredSizesSQL uses the unique index on the messages' numbers. It reads the lengths from the rows' headers and
// decompresses nothing.
const expiredSizesSQL = `
SELECT number, octet_length(content)::bigint + octet_length(serialized_properties) FROM {messages} WHERE number = ANY ($1::bigint[])`

// expiredMessagesSQL uses the unique index on the messages' numbers.
const expiredMessagesSQL = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number = ANY ($1::bigint[])`

// expiredStatusesSQL uses handler_statuses_pkey. For LATERAL and OFFSET, see acceptKeysSQL.
const expiredStatusesSQL = `
SELECT id::text, message_number, message_id, handler_key, sequence, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, last_error,
	fingerprint, created_at, processing_started_at, worker_id::text, next_attempt_at, is_poisoned, published_at, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane, poisoned_at, attempts
FROM unnest($1::bigint[]) AS k(number)
CROSS JOIN LATERAL (SELECT * FROM {statuses} WHERE message_number = k.number OFFSET 0) s`

// deleteStatusesSQL uses handler_statuses_pkey and deletes rows at the version that was archived. For the sub-selects,
// see completionsSQL.
const deleteStatusesSQL = `
DELETE FROM {statuses} s
USING unnest((SELECT $1::bigint[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $4::text[]::uuid[]))
	AS a(number, handler_key, version, id)
WHERE s.message_number = a.number AND s.handler_key = a.handler_key AND s.version = a.version AND s.id = a.id AND s.completed_at IS NOT NULL`

// deleteMessagesSQL finds messages by the unique index on their numbers, and their statuses by handler_statuses_pkey,
// which also serves the cascade. The cascade has nothing left to delete. The statement's snapshot is younger than the
// locks, so it shows all rows that an accept has added.
const deleteMessagesSQL = `
DELETE FROM {ids} m WHERE m.number = ANY ($1::bigint[])
	AND NOT EXISTS (SELECT FROM {statuses} s WHERE s.message_number = m.number OFFSET 0)`

// DeleteExpired works like Cleanup: it takes locks first, and its later snapshots show the rows that were added before
// them.
func (p *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (store.CleanupResult, error) {
	var result store.CleanupResult
	err := p.withoutJIT(ctx, func(pool gorm.ConnPool) error {
		numbers := make([]int64, len(expired))
		for i, e := range expired {
			numbers[i] = int64(e.Message.Number)
		}
		locked, err := store.Query(ctx, pool, p.Text(cleanupLockSQL), store.Value[int64], numbers)
		if err != nil {
			return err
		}
		slices.Sort(locked)
		ours := slices.DeleteFunc(slices.Clone(expired), func(e store.ExpiredMessage) bool {
			_, found := slices.BinarySearch(locked, int64(e.Message.Number))
			return !found
		})
		whole, statuses := base.Deletions(ours)
		n := len(statuses)
		ofMessages, keys, versions, ids := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
		for i, s := range statuses {
			ofMessages[i], keys[i], versions[i], ids[i] = s.MessageNumber, s.HandlerKey, int64(s.Version), s.ID
		}
		result.Statuses, err = store.Exec(ctx, pool, p.Text(deleteStatusesSQL), ofMessages, keys, versions, ids)
		if err != nil {
			return err
		}
		result.Messages, err = store.Exec(ctx, pool, p.Text(deleteMessagesSQL), whole)
		result.Passed = int64(len(expired)-len(ours)+len(whole)) - result.Messages
		if err != nil {
			return err
		}
		return p.deleteForgotten(ctx, pool, whole)
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}

// These statements use the indexes that their ORDER BY names, and delete rows by their place: the rows are locked, so
// they stay there. The portable profile deletes them by their primary keys. Rows that another transaction uses are
// skipped. Audit rows need no lock, which would require the right to update them: they never change. The sub-select
// reads the clock once, so that the index can serve the condition.
const (
	deleteMarkersSQL = `
WITH expired AS MATERIALIZED (
	SELECT {marker} FROM {markers}
	WHERE expires_at < (SELECT LEAST($1::timestamptz, {latest})) ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM {markers} WHERE {marker expired}`

	deleteAuditSQL = `
DELETE FROM {audit} WHERE {place} = ANY (ARRAY(
	SELECT {place} FROM {audit} WHERE occurred_at < $1::timestamptz ORDER BY occurred_at LIMIT $2
))`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE {place} = ANY (ARRAY(
	SELECT {place} FROM {rejected} WHERE rejected_at < $1::timestamptz ORDER BY rejected_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
))`
)
