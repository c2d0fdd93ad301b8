package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// These statements use primary keys, or read the whole table, which has one row per process. UTC_TIMESTAMP is the time
// at which the statement began.
const (
	heartbeatSQL = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, consumers, settings, database_role, started_at, heartbeat_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, SUBSTRING_INDEX(USER(), '@', 1), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE host = VALUES(host), pid = VALUES(pid), handler_keys = VALUES(handler_keys), health = VALUES(health),
	consumers = VALUES(consumers), database_role = VALUES(database_role), heartbeat_at = VALUES(heartbeat_at)`

	// addLockSQL inserts what claims of a worker lock.
	addLockSQL = `INSERT INTO {worker locks} (id) VALUES (?1) ON DUPLICATE KEY UPDATE id = id`

	// recordDrainSQL writes a row that begins and ends at the same moment, which marks a drain.
	recordDrainSQL = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, consumers, database_role, started_at, heartbeat_at, stopped_at)
VALUES (?1, ?2, ?3, ?4, ?5, '[]', SUBSTRING_INDEX(USER(), '@', 1), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE host = VALUES(host), pid = VALUES(pid), handler_keys = VALUES(handler_keys),
	started_at = VALUES(started_at), heartbeat_at = VALUES(heartbeat_at), stopped_at = VALUES(stopped_at), released_at = NULL`

	workerLivesSQL = `SELECT id FROM {workers} WHERE id = ?1 AND released_at IS NULL`

	workerStateSQL = `SELECT released_at IS NULL, stopped_at IS NULL FROM {workers} WHERE id = ?1`

	lockWorkerRowSQL = `SELECT released_at IS NOT NULL FROM {workers} WHERE id = ?1 FOR UPDATE`

	stopWorkerSQL = `UPDATE {workers} SET stopped_at = UTC_TIMESTAMP(6) WHERE id = ?1 AND stopped_at IS NULL`

	workersSQL = `
SELECT id, host, pid, handler_keys, health, database_role, started_at, TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)),
	stopped_at IS NOT NULL, COALESCE(stopped_at = started_at, false), released_at IS NOT NULL, UTC_TIMESTAMP(6)
FROM {workers} ORDER BY started_at, id`

	// shareLockSQL is taken by claims until they are committed, and exclusiveLockSQL by what marks the worker as
	// released. Neither waits: an accept whose process is gone may stay open for long. MariaDB runs the first comment
	// alone, MySQL the second.
	shareLockSQL     = `SELECT id FROM {worker locks} WHERE id = ?1 /*M! LOCK IN SHARE MODE SKIP LOCKED */ /*!80001 FOR SHARE SKIP LOCKED */`
	exclusiveLockSQL = `SELECT id FROM {worker locks} WHERE id = ?1 FOR UPDATE NOWAIT`

	markReleasedSQL = `UPDATE {workers} SET released_at = UTC_TIMESTAMP(6) WHERE id = ?1 AND released_at IS NULL`

	deletableSQL = `
SELECT id FROM {workers} FORCE INDEX (PRIMARY)
WHERE id IN ({list ?1}) AND (stopped_at IS NOT NULL OR released_at IS NOT NULL) ORDER BY id FOR UPDATE`

	deleteWorkerSQL = `DELETE FROM {workers} WHERE id = ?1`
	deleteLockSQL   = `DELETE FROM {worker locks} WHERE id = ?1`
)

func (s *Store) Heartbeat(ctx context.Context, w store.Worker, _ time.Time) error {
	err := s.retrying(ctx, func(pool gorm.ConnPool) error {
		released, err := store.Query(ctx, pool, s.Text(lockWorkerRowSQL), store.Value[bool], w.ID)
		if err == nil && slices.Contains(released, true) {
			return store.ErrWorkerReleased
		}
		if err == nil {
			_, err = store.Exec(ctx, pool, s.Text(heartbeatSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
				base.HealthJSON(w), base.ConsumersJSON(w), w.Settings)
		}
		if err == nil && len(released) == 0 {
			_, err = store.Exec(ctx, pool, s.Text(addLockSQL), w.ID)
		}
		return err
	})
	return base.Doing("heartbeat", err)
}

func (s *Store) RecordDrain(ctx context.Context, w store.Worker, _ time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(recordDrainSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
		base.HealthJSON(w))
	return base.Doing("record drain", err)
}

func (s *Store) StopWorker(ctx context.Context, workerID string, _ time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(stopWorkerSQL), workerID)
	return base.Doing("stop worker", err)
}

func (s *Store) Workers(ctx context.Context, _ time.Time) ([]store.WorkerState, error) {
	workers, err := store.Query(ctx, s.Pool(ctx), s.Text(workersSQL), func(rows *sql.Rows, w *store.WorkerState) error {
		var keys string
		var silent int64
		var started, read store.Stamp
		if err := rows.Scan(&w.ID, &w.Host, &w.PID, &keys, &w.Health, &w.DatabaseRole, &started, &silent, &w.Stopped,
			&w.Drains, &w.Released, &read); err != nil {
			return err
		}
		w.StartedAt, w.SilentFor, w.Read = started.Time, time.Duration(silent)*time.Microsecond, read.Time
		w.Evictable = true // no role is barred from what none can
		base.ParseHandlerKeys(keys, w)
		return nil
	})
	return workers, base.Doing("list workers", err)
}

// lockWorker locks what claims of a worker share, until the transaction ends, and reports whether the worker lives.
// Without the lock this could happen:
//
//  1. A claim reads that its worker lives.
//  2. The worker is marked as released, and its claims are looked for. There are none, because these claims are not
//     committed yet.
//  3. These claims are committed.
func (s *Store) lockWorker(ctx context.Context, pool gorm.ConnPool, workerID string, running bool) (bool, error) {
	locked, err := store.Query(ctx, pool, s.Text(shareLockSQL), store.Value[string], workerID)
	if err != nil || len(locked) == 0 {
		return false, err
	}
	states, err := store.Query(ctx, pool, s.Text(workerStateSQL), func(rows *sql.Rows, is *[2]bool) error {
		return rows.Scan(&is[0], &is[1])
	}, workerID)
	return err == nil && len(states) == 1 && states[0][0] && (states[0][1] || !running), err
}

func (s *Store) MarkReleased(ctx context.Context, workerID string, _ time.Time) error {
	err := s.Transaction(ctx, func(pool gorm.ConnPool) error {
		if _, err := store.Query(ctx, pool, s.Text(exclusiveLockSQL), store.Value[string], workerID); err != nil {
			return err
		}
		_, err := store.Exec(ctx, pool, s.Text(markReleasedSQL), workerID)
		return err
	})
	if isLockNotFree(err) {
		err = store.ErrWorkerBusy
	}
	return base.Doing("mark worker released", err)
}

// isLockNotFree reports whether NOWAIT has found a lock taken, which MariaDB calls a timeout.
func isLockNotFree(err error) bool {
	number, _, found := mysqldialect.Code(err)
	return found && (number == mysqldialect.LockNotFree || number == mysqldialect.LockWaitTimeout)
}

func (s *Store) DeleteWorkers(ctx context.Context, workerIDs []string) (deleted int64, err error) {
	workerIDs = slices.Sorted(slices.Values(workerIDs))
	err = s.retrying(ctx, func(pool gorm.ConnPool) error {
		ids, err := queryAll(ctx, s, pool, deletableSQL, store.Value[string], listOf(workerIDs))
		for _, id := range ids {
			if _, err := store.Exec(ctx, pool, s.Text(deleteWorkerSQL), id); err != nil {
				return err
			}
			if _, err := store.Exec(ctx, pool, s.Text(deleteLockSQL), id); err != nil {
				return err
			}
		}
		deleted = int64(len(ids))
		return err
	})
	return deleted, base.Doing("delete workers", err)
}
