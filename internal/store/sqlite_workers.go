package store

import (
	"context"
	"database/sql"
	"time"
)

// All by primary key or over the whole of a table that has one row per
// process. Silence is judged by the clock the caller gives (contract 3.5).
const (
	sqliteHeartbeat = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, database_role, started_at, heartbeat_at) VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?6)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, handler_keys = excluded.handler_keys, health = excluded.health,
	heartbeat_at = excluded.heartbeat_at
WHERE released_at IS NULL
RETURNING id`

	sqliteRecordDrain = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, database_role, started_at, heartbeat_at, stopped_at)
VALUES (?1, ?2, ?3, ?4, ?6, '', ?5, ?5, ?5)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, handler_keys = excluded.handler_keys,
	started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at, stopped_at = excluded.stopped_at, released_at = NULL`

	sqliteWorkerLives = `SELECT id FROM {workers} WHERE id = ?1 AND released_at IS NULL`

	sqliteStopWorker = `UPDATE {workers} SET stopped_at = ?2 WHERE id = ?1 AND stopped_at IS NULL`

	sqliteWorkers = `
SELECT id, host, pid, handler_keys, health, started_at, heartbeat_at, stopped_at IS NOT NULL, COALESCE(stopped_at = started_at, false), released_at IS NOT NULL
FROM {workers} ORDER BY started_at, id`

	sqliteMarkReleased = `UPDATE {workers} SET released_at = ?2 WHERE id = ?1 AND released_at IS NULL`
)

// Claims by the due index. A worker that has claims keeps its row: without it
// nobody would look for them.
const sqliteDeleteWorkers = `
DELETE FROM {workers}
WHERE id IN (SELECT value FROM json_each(?1)) AND (stopped_at IS NOT NULL OR released_at IS NOT NULL)
	AND id NOT IN (
		SELECT worker_id FROM {statuses} WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND processing_started_at IS NOT NULL AND worker_id IS NOT NULL
	)`

func (s *sqlite) Heartbeat(ctx context.Context, w Worker, now time.Time) error {
	keys, err := handlerKeysJSON(w)
	if err != nil {
		return err
	}
	written, err := Query(ctx, s.pool(ctx), s.text(sqliteHeartbeat), Value[string], w.ID, w.Host, w.PID, keys, healthJSON(w), SQLiteTime(now))
	if err == nil && len(written) == 0 {
		err = ErrWorkerReleased
	}
	return doing("heartbeat", err)
}

func (s *sqlite) RecordDrain(ctx context.Context, w Worker, now time.Time) error {
	keys, err := handlerKeysJSON(w)
	if err != nil {
		return err
	}
	_, err = Exec(ctx, s.pool(ctx), s.text(sqliteRecordDrain), w.ID, w.Host, w.PID, keys, SQLiteTime(now), healthJSON(w))
	return doing("record drain", err)
}

func (s *sqlite) WorkerLives(ctx context.Context, workerID string) (bool, error) {
	found, err := Query(ctx, s.pool(ctx), s.text(sqliteWorkerLives), Value[string], workerID)
	return len(found) == 1, doing("look at worker", err)
}

func (s *sqlite) StopWorker(ctx context.Context, workerID string, now time.Time) error {
	_, err := Exec(ctx, s.pool(ctx), s.text(sqliteStopWorker), workerID, SQLiteTime(now))
	return doing("stop worker", err)
}

func (s *sqlite) Workers(ctx context.Context, now time.Time) ([]WorkerState, error) {
	workers, err := Query(ctx, s.pool(ctx), s.text(sqliteWorkers), func(rows *sql.Rows, w *WorkerState) error {
		var keys string
		var started, heartbeat anyTime
		if err := rows.Scan(&w.ID, &w.Host, &w.PID, &keys, &w.Health, &started, &heartbeat, &w.Stopped, &w.Drains, &w.Released); err != nil {
			return err
		}
		w.StartedAt, w.SilentFor, w.Evictable = started.Time, now.Sub(heartbeat.Time), true
		return parseHandlerKeys(keys, w)
	})
	return workers, doing("list workers", err)
}

// EvictWorker has nothing to do: a SQLite transaction dies with its process.
func (s *sqlite) EvictWorker(context.Context, string) (int, error) { return 0, nil }

func (s *sqlite) MarkReleased(ctx context.Context, workerID string, now time.Time) error {
	_, err := Exec(ctx, s.pool(ctx), s.text(sqliteMarkReleased), workerID, SQLiteTime(now))
	return doing("mark worker released", err)
}

func (s *sqlite) DeleteWorkers(ctx context.Context, workerIDs []string) (int64, error) {
	list, err := jsonList(workerIDs)
	if err != nil {
		return 0, doing("delete workers", err)
	}
	deleted, err := Exec(ctx, s.pool(ctx), s.text(sqliteDeleteWorkers), list)
	return deleted, doing("delete workers", err)
}
