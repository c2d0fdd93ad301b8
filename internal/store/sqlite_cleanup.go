package store

import (
	"context"
	"database/sql"

	"gorm.io/gorm"
)

// By the index on (received_at, number).
const sqliteCandidates = `
SELECT number, received_at FROM {messages}
WHERE received_at < ?1 AND (received_at, number) > (?2, ?3)
ORDER BY received_at, number
LIMIT ?4`

// What goes: its own cutoff or the common one.
const sqliteCutoff = `COALESCE((
		SELECT json_extract(own.value, '$[1]') FROM json_each(?6) own WHERE json_extract(own.value, '$[0]') = {statuses}.handler_key
	), ?5)`

// Messages as above, statuses by the unique index on (message_number, handler_key).
const sqliteExpired = `
SELECT w.number, w.received_at,
	NOT EXISTS (SELECT 1 FROM {statuses} WHERE {statuses}.message_number = w.number)
	OR EXISTS (SELECT 1 FROM {statuses} WHERE {statuses}.message_number = w.number AND {statuses}.completed_at < ` + sqliteCutoff + `)
FROM (` + sqliteCandidates + `) w`

// First, because a transaction must begin with a write. By the unique index on
// (message_number, handler_key). Not left to ON DELETE CASCADE, which SQLite obeys
// only where foreign keys are switched on.
const sqliteCleanupStatuses = `
DELETE FROM {statuses}
WHERE message_number IN (SELECT number FROM (` + sqliteCandidates + `))
	AND completed_at < ` + sqliteCutoff

// Messages by the unique index on their numbers, statuses by that on
// (message_number, handler_key).
const sqliteCleanupMessages = `
DELETE FROM {messages}
WHERE number IN (SELECT value FROM json_each(?1))
	AND NOT EXISTS (SELECT 1 FROM {statuses} s WHERE s.message_number = {messages}.number)`

// sqliteWalk makes the arguments of a walk: ?1 to ?4 of the candidates, ?5 and
// ?6 of the cutoffs.
func sqliteWalk(req CleanupRequest) ([]any, error) {
	cutoffs := make([][2]string, len(req.HandlerCutoffs))
	for i, own := range req.HandlerCutoffs {
		cutoffs[i] = [2]string{own.HandlerKey, SQLiteTime(own.Cutoff)}
	}
	own, err := jsonList(cutoffs)
	return []any{SQLiteTime(req.until()), SQLiteTime(req.After.ReceivedAt), req.After.MessageNumber, req.Limit, SQLiteTime(req.Cutoff), own}, err
}

func (s *sqlite) Expired(ctx context.Context, req CleanupRequest) (ExpiredBatch, error) {
	walk, err := sqliteWalk(req)
	if err != nil {
		return ExpiredBatch{Next: req.After}, doing("find expired messages", err)
	}
	candidates, err := Query(ctx, s.pool(ctx), s.text(sqliteExpired), func(rows *sql.Rows, c *candidate) error {
		var received anyTime
		err := rows.Scan(&c.MessageNumber, &received, &c.expired)
		c.ReceivedAt = received.Time
		return err
	}, walk...)
	if err != nil {
		return ExpiredBatch{Next: req.After}, doing("find expired messages", err)
	}
	return req.batch(candidates), nil
}

func (s *sqlite) Cleanup(ctx context.Context, req CleanupRequest) (CleanupResult, error) {
	walk, err := sqliteWalk(req)
	if err != nil {
		return CleanupResult{Next: req.After}, doing("cleanup", err)
	}
	var result CleanupResult
	err = s.transaction(ctx, func(pool gorm.ConnPool) error {
		var err error
		if result.Statuses, err = Exec(ctx, pool, s.text(sqliteCleanupStatuses), walk...); err != nil {
			return err
		}
		candidates, err := Query(ctx, pool, s.text(sqliteCandidates), func(rows *sql.Rows, c *candidate) error {
			var received anyTime
			err := rows.Scan(&c.MessageNumber, &received)
			c.ReceivedAt, c.expired = received.Time, true
			return err
		}, walk[:4]...)
		if err != nil {
			return err
		}
		found := req.batch(candidates)
		list, err := jsonList(found.MessageNumbers)
		if err != nil {
			return err
		}
		result.Messages, err = Exec(ctx, pool, s.text(sqliteCleanupMessages), list)
		result.Next, result.Done = found.Next, found.Done
		return err
	})
	if err != nil {
		return CleanupResult{Next: req.After}, doing("cleanup", err)
	}
	return result, nil
}
