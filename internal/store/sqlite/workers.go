package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use primary keys, or read the whole table, which has one row per process. Silence is measured by the
// caller's clock.
const (
	heartbeatSQL = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, consumers, settings, database_role, started_at, heartbeat_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?7, ?8, '', ?6, ?6)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, handler_keys = excluded.handler_keys, health = excluded.health,
	consumers = excluded.consumers, heartbeat_at = excluded.heartbeat_at
WHERE released_at IS NULL
RETURNING id`

	recordDrainSQL = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, consumers, database_role, started_at, heartbeat_at, stopped_at)
VALUES (?1, ?2, ?3, ?4, ?6, '[]', '', ?5, ?5, ?5)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, handler_keys = excluded.handler_keys,
	started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at, stopped_at = excluded.stopped_at, released_at = NULL`

	workerLivesSQL = `SELECT id FROM {workers} WHERE id = ?1 AND released_at IS NULL`

	stopWorkerSQL = `UPDATE {workers} SET stopped_at = ?2 WHERE id = ?1 AND stopped_at IS NULL`

	workersSQL = `
SELECT id, host, pid, handler_keys, health, started_at, heartbeat_at, stopped_at IS NOT NULL, COALESCE(stopped_at = started_at, false), released_at IS NOT NULL
FROM {workers} ORDER BY started_at, id`

	markReleasedSQL = `UPDATE {workers} SET released_at = ?2 WHERE id = ?1 AND released_at IS NULL`

	deleteWorkersSQL = `
DELETE FROM {workers} WHERE id IN (SELECT value FROM json_each(?1)) AND (stopped_at IS NOT NULL OR released_at IS NOT NULL)`
)

func (s *Store) Heartbeat(ctx context.Context, w store.Worker, now time.Time) error {
	written, err := store.Query(ctx, s.Pool(ctx), s.Text(heartbeatSQL), store.Value[string], w.ID, w.Host, w.PID,
		base.HandlerKeysJSON(w), base.HealthJSON(w), store.SQLiteTime(now), base.ConsumersJSON(w), w.Settings)
	if err == nil && len(written) == 0 {
		err = store.ErrWorkerReleased
	}
	return base.Doing("heartbeat", err)
}

func (s *Store) RecordDrain(ctx context.Context, w store.Worker, now time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(recordDrainSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
		store.SQLiteTime(now), base.HealthJSON(w))
	return base.Doing("record drain", err)
}

func (s *Store) StopWorker(ctx context.Context, workerID string, now time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(stopWorkerSQL), workerID, store.SQLiteTime(now))
	return base.Doing("stop worker", err)
}

func (s *Store) Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error) {
	workers, err := store.Query(ctx, s.Pool(ctx), s.Text(workersSQL), func(rows *sql.Rows, w *store.WorkerState) error {
		var keys string
		var started, heartbeat store.Stamp
		if err := rows.Scan(&w.ID, &w.Host, &w.PID, &keys, &w.Health, &started, &heartbeat, &w.Stopped, &w.Drains,
			&w.Released); err != nil {
			return err
		}
		w.StartedAt, w.SilentFor, w.Evictable = started.Time, now.Sub(heartbeat.Time), true
		base.ParseHandlerKeys(keys, w)
		return nil
	})
	return workers, base.Doing("list workers", err)
}

func (s *Store) MarkReleased(ctx context.Context, workerID string, now time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(markReleasedSQL), workerID, store.SQLiteTime(now))
	return base.Doing("mark worker released", err)
}
