package sqlite

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// candidatesSQL uses the index on (received_at, number).
const candidatesSQL = `
SELECT number, received_at FROM {messages}
WHERE received_at < ?1 AND (received_at, number) > (?2, ?3)
ORDER BY received_at, number
LIMIT ?4`

// cutoffSQL is the cutoff of a status: its handler key's, or else the common one.
const cutoffSQL = `COALESCE((
		SELECT json_extract(own.value, '$[1]') FROM json_each(?6) own WHERE json_extract(own.value, '$[0]') = {statuses}.handler_key
	), ?5)`

// expiredSQL finds messages as candidatesSQL does, and statuses by their primary key.
const expiredSQL = `
SELECT w.number, w.received_at,
	NOT EXISTS (SELECT 1 FROM {statuses} WHERE {statuses}.message_number = w.number)
	OR EXISTS (SELECT 1 FROM {statuses} WHERE {statuses}.message_number = w.number AND {statuses}.completed_at < ` + cutoffSQL + `)
FROM (` + candidatesSQL + `) w`

// cleanupStatusesSQL runs first, because a transaction must begin with a write. It uses the primary key. We do not rely
// on ON DELETE CASCADE, which SQLite obeys only if foreign keys are on.
const cleanupStatusesSQL = `
DELETE FROM {statuses}
WHERE message_number IN (SELECT number FROM (` + candidatesSQL + `))
	AND completed_at < ` + cutoffSQL

// cleanupMessagesSQL finds messages by the unique index on their numbers, statuses by their primary key.
const cleanupMessagesSQL = `
DELETE FROM {messages}
WHERE number IN (SELECT value FROM json_each(?1))
	AND NOT EXISTS (SELECT 1 FROM {statuses} s WHERE s.message_number = {messages}.number)`

// walkArgs returns the arguments of a walk: ?1 to ?4 for the candidates, ?5 and ?6 for the cutoffs.
func walkArgs(req store.CleanupRequest) []any {
	cutoffs := make([][2]string, len(req.HandlerCutoffs))
	for i, own := range req.HandlerCutoffs {
		cutoffs[i] = [2]string{own.HandlerKey, store.SQLiteTime(own.Cutoff)}
	}
	return []any{store.SQLiteTime(base.WalkEnd(req)), store.SQLiteTime(req.After.ReceivedAt), req.After.MessageNumber,
		req.Limit, store.SQLiteTime(req.Cutoff), base.JSONList(cutoffs)}
}

func (s *Store) Clock(_ context.Context, now time.Time) (time.Time, error) { return now, nil }

func (s *Store) ClockIn(_ context.Context, _ gorm.ConnPool, now time.Time) (time.Time, error) {
	return now, nil
}

func (s *Store) Expired(ctx context.Context, req store.CleanupRequest) (store.ExpiredBatch, error) {
	candidates, err := store.Query(ctx, s.Pool(ctx), s.Text(expiredSQL), func(rows *sql.Rows, c *base.Candidate) error {
		var received store.Stamp
		err := rows.Scan(&c.MessageNumber, &received, &c.Expired)
		c.ReceivedAt = received.Time
		return err
	}, walkArgs(req)...)
	if err != nil {
		return store.ExpiredBatch{Next: req.After}, base.Doing("find expired messages", err)
	}
	return base.Walked(req, candidates), nil
}

func (s *Store) Cleanup(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	walk := walkArgs(req)
	var result store.CleanupResult
	err := s.Transaction(ctx, func(pool gorm.ConnPool) error {
		var err error
		if result.Statuses, err = store.Exec(ctx, pool, s.Text(cleanupStatusesSQL), walk...); err != nil {
			return err
		}
		candidates, err := store.Query(ctx, pool, s.Text(candidatesSQL), func(rows *sql.Rows, c *base.Candidate) error {
			var received store.Stamp
			err := rows.Scan(&c.MessageNumber, &received)
			c.ReceivedAt, c.Expired = received.Time, true
			return err
		}, walk[:4]...)
		if err != nil {
			return err
		}
		found := base.Walked(req, candidates)
		result.Messages, err = store.Exec(ctx, pool, s.Text(cleanupMessagesSQL), base.JSONList(found.MessageNumbers))
		result.Next, result.Done = found.Next, found.Done
		return err
	})
	if err != nil {
		return store.CleanupResult{Next: req.After}, base.Doing("cleanup", err)
	}
	return result, nil
}

// expiredSizesSQL uses the unique index on the messages' numbers. It reads lengths from the rows' headers.
const expiredSizesSQL = `
SELECT number, length(content) + length(serialized_properties) FROM {messages} WHERE number IN (SELECT value FROM json_each(?1))`

// expiredMessagesSQL uses the unique index on the messages' numbers.
const expiredMessagesSQL = `
SELECT id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, ordering_key IS NOT NULL, received_at
FROM {messages} WHERE number IN (SELECT value FROM json_each(?1))`

// expiredStatusesSQL uses the statuses' primary key.
const expiredStatusesSQL = `
SELECT id, message_number, message_id, handler_key, sequence, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes, last_error, fingerprint, created_at,
	processing_started_at, worker_id, next_attempt_at, is_poisoned, published_at, completed_at, outcome, version, lane_handler, lane_key, is_waiting, holds_lane, poisoned_at, attempts
FROM {statuses} WHERE message_number IN (SELECT value FROM json_each(?1))`

// deleteStatusesSQL uses the statuses' primary key and deletes rows at the version that was archived. CROSS JOIN fixes
// the join order, so that it reads each reference once and not each status.
const deleteStatusesSQL = `
DELETE FROM {statuses} WHERE rowid IN (
	SELECT s.rowid FROM json_each(?1) a
	CROSS JOIN {statuses} s ON s.message_number = json_extract(a.value, '$[0]') AND s.handler_key = json_extract(a.value, '$[1]')
		AND s.version = json_extract(a.value, '$[2]') AND s.id = json_extract(a.value, '$[3]')
	WHERE s.completed_at IS NOT NULL
)`

// DeleteExpired begins with a write and so holds the file's only write lock: no accept can run between deleting the
// statuses and deleting their messages.
func (s *Store) DeleteExpired(ctx context.Context, expired []store.ExpiredMessage) (store.CleanupResult, error) {
	whole, statuses := base.Deletions(expired)
	refs := make([][4]any, len(statuses))
	for i, s := range statuses {
		refs[i] = [4]any{s.MessageNumber, s.HandlerKey, s.Version, s.ID}
	}
	var result store.CleanupResult
	err := s.Transaction(ctx, func(pool gorm.ConnPool) error {
		var err error
		if result.Statuses, err = store.Exec(ctx, pool, s.Text(deleteStatusesSQL), base.JSONList(refs)); err != nil {
			return err
		}
		result.Messages, err = store.Exec(ctx, pool, s.Text(cleanupMessagesSQL), base.JSONList(whole))
		result.Passed = int64(len(whole)) - result.Messages
		return err
	})
	if err != nil {
		return store.CleanupResult{}, base.Doing("delete archived messages", err)
	}
	return result, nil
}

// These statements use the indexes that their ORDER BY names.
const (
	deleteMarkersSQL = `
DELETE FROM {markers} WHERE rowid IN (SELECT rowid FROM {markers} WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)`

	deleteAuditSQL = `
DELETE FROM {audit} WHERE rowid IN (SELECT rowid FROM {audit} WHERE occurred_at < ?1 ORDER BY occurred_at LIMIT ?2)`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE rowid IN (SELECT rowid FROM {rejected} WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT ?2)`
)
