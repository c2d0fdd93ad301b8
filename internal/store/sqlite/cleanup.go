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
