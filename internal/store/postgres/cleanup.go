package postgres

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// expiredSQL reads messages by the index on (received_at, number), and their statuses by handler_statuses_pkey, message
// by message. It uses LATERAL because the planner might otherwise read the whole table for a large batch. It locks
// nothing, so a message with nothing to delete costs no write, however often it is read.
const expiredSQL = `
WITH walked AS MATERIALIZED (
	SELECT number, received_at FROM {messages}
	WHERE received_at < $1::timestamptz AND (received_at, number) > ($2::timestamptz, $3::bigint)
	ORDER BY received_at, number
	LIMIT $4
)
SELECT w.number, w.received_at, found.expired > 0 OR found.statuses = 0
FROM walked w CROSS JOIN LATERAL (
	SELECT count(*) AS statuses, count(*) FILTER (WHERE s.completed_at < COALESCE((
		SELECT own.cutoff FROM unnest($6::text[], $7::timestamptz[]) AS own(handler_key, cutoff) WHERE own.handler_key = s.handler_key
	), $5::timestamptz)) AS expired
	FROM {statuses} s WHERE s.message_number = w.number
) found
ORDER BY w.received_at, w.number`

// cleanupLockSQL uses the unique index on the messages' numbers. It skips rows that an accept or another cleanup has
// locked. The next run comes back to that.
const cleanupLockSQL = `
SELECT number FROM {messages} WHERE number = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED`

// cleanupMessagesSQL finds statuses by handler_statuses_pkey, message by message, and messages by the unique index on
// their numbers. A message's statuses are deleted with it (ON DELETE CASCADE).
const cleanupMessagesSQL = `
WITH finished AS MATERIALIZED (
	SELECT c.number, count(s.id) AS statuses
	FROM unnest($1::bigint[]) AS c(number)
	LEFT JOIN LATERAL (SELECT id, handler_key, completed_at FROM {statuses} WHERE message_number = c.number OFFSET 0) s ON true
	LEFT JOIN unnest($3::text[], $4::timestamptz[]) AS own(handler_key, cutoff) ON own.handler_key = s.handler_key
	GROUP BY c.number
	HAVING count(*) FILTER (WHERE s.id IS NOT NULL AND NOT COALESCE(s.completed_at < COALESCE(own.cutoff, $2::timestamptz), false)) = 0
), deleted AS (
	DELETE FROM {messages} WHERE number = ANY (ARRAY(SELECT number FROM finished)) RETURNING number
)
SELECT count(*), COALESCE(sum(f.statuses), 0)::bigint FROM deleted d JOIN finished f ON f.number = d.number`

// cleanupStatusesSQL uses handler_statuses_pkey. For the sub-select, see completeUnlockedSQL.
const cleanupStatusesSQL = `
DELETE FROM {statuses} s
WHERE s.message_number = ANY ((SELECT $1::bigint[])::bigint[])
	AND s.completed_at < COALESCE((
		SELECT own.cutoff FROM unnest($3::text[], $4::timestamptz[]) AS own(handler_key, cutoff) WHERE own.handler_key = s.handler_key
	), $2::timestamptz)`

// clockSQL reads no table.
const clockSQL = `SELECT COALESCE({latest}, $1::timestamptz)`

func (p *Store) Clock(ctx context.Context, now time.Time) (time.Time, error) {
	times, err := store.Query(ctx, p.Pool(ctx), p.Text(clockSQL), store.Value[time.Time], now.UTC())
	if err != nil {
		return time.Time{}, base.Doing("read the database's clock", err)
	}
	return times[0].UTC(), nil
}

func (p *Store) Expired(ctx context.Context, req store.CleanupRequest) (store.ExpiredBatch, error) {
	keys, cutoffs := ownCutoffs(req)
	pool := p.Singles.WithoutJIT().Pool(ctx)
	candidates, err := store.Query(ctx, pool, p.Text(expiredSQL), func(rows *sql.Rows, c *base.Candidate) error {
		return rows.Scan(&c.MessageNumber, &c.ReceivedAt, &c.Expired)
	}, base.WalkEnd(req).UTC(), req.After.ReceivedAt.UTC(), req.After.MessageNumber, req.Limit, req.Cutoff.UTC(), keys,
		cutoffs)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired messages", err)
	}
	return base.Walked(req, candidates), nil
}

// withoutJIT is Transaction for statements about thousands of rows (see store.Singles.WithoutJIT).
func (p *Store) withoutJIT(ctx context.Context, work func(gorm.ConnPool) error) error {
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
