package store

import (
	"context"
	"database/sql"

	"gorm.io/gorm"
)

// By the index on (received_at, id).
const sqliteCandidates = `
SELECT id, received_at FROM {messages}
WHERE received_at < ?1 AND (received_at, id) > (?2, ?3)
ORDER BY received_at, id
LIMIT ?4`

// First, because a transaction must begin with a write. By the unique index on
// (message_id, handler_key). Not left to ON DELETE CASCADE, which SQLite obeys
// only where foreign keys are switched on.
const sqliteCleanupStatuses = `
DELETE FROM {statuses}
WHERE message_id IN (SELECT id FROM (` + sqliteCandidates + `))
	AND completed_at < COALESCE((
		SELECT json_extract(own.value, '$[1]') FROM json_each(?6) own WHERE json_extract(own.value, '$[0]') = {statuses}.handler_key
	), ?5)`

// Messages by their primary key, statuses by the unique index on
// (message_id, handler_key).
const sqliteCleanupMessages = `
DELETE FROM {messages}
WHERE id IN (SELECT value FROM json_each(?1))
	AND NOT EXISTS (SELECT 1 FROM {statuses} s WHERE s.message_id = {messages}.id)`

func (s *sqlite) Cleanup(ctx context.Context, req CleanupRequest) (CleanupResult, error) {
	cutoffs := make([][2]string, len(req.HandlerCutoffs))
	for i, own := range req.HandlerCutoffs {
		cutoffs[i] = [2]string{own.HandlerKey, SQLiteTime(own.Cutoff)}
	}
	own, err := jsonList(cutoffs)
	if err != nil {
		return CleanupResult{Next: req.After}, doing("cleanup", err)
	}
	walk := []any{SQLiteTime(req.latest()), SQLiteTime(req.After.ReceivedAt), req.After.MessageID, req.Limit}
	result := CleanupResult{Next: req.After}
	err = s.transaction(ctx, func(pool gorm.ConnPool) error {
		var err error
		if result.Statuses, err = exec(ctx, pool, s.text(sqliteCleanupStatuses), append(walk[:4:4], SQLiteTime(req.Cutoff), own)...); err != nil {
			return err
		}
		candidates, err := query(ctx, pool, s.text(sqliteCandidates), func(rows *sql.Rows, c *CleanupCursor) error {
			var received anyTime
			err := rows.Scan(&c.MessageID, &received)
			c.ReceivedAt = received.Time
			return err
		}, walk...)
		if err != nil {
			return err
		}
		ids := make([]string, len(candidates))
		for i, candidate := range candidates {
			ids[i] = candidate.MessageID
		}
		list, err := jsonList(ids)
		if err != nil {
			return err
		}
		if result.Messages, err = exec(ctx, pool, s.text(sqliteCleanupMessages), list); err != nil {
			return err
		}
		result.advance(candidates, req.Limit)
		return nil
	})
	if err != nil {
		return CleanupResult{Next: req.After}, doing("cleanup", err)
	}
	return result, nil
}
