package postgres

import (
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// These statements use workers_pkey, or read the whole table, which has one row per process. clock_timestamp() is the
// current time, while now() would be the start of the transaction.
const (
	heartbeatSQL = `
INSERT INTO {workers} AS w (id, host, pid, handler_keys, health, consumers, settings, database_role, started_at, heartbeat_at)
VALUES ($1::text::uuid, $2, $3::integer, $4, $5, $6, $7, session_user, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET host = EXCLUDED.host, pid = EXCLUDED.pid, handler_keys = EXCLUDED.handler_keys, health = EXCLUDED.health,
	consumers = EXCLUDED.consumers, database_role = EXCLUDED.database_role, heartbeat_at = clock_timestamp()
WHERE w.released_at IS NULL`

	// recordDrainSQL writes a row that begins and ends at the same moment, which marks a drain. One statement reads the
	// clock once.
	recordDrainSQL = `
INSERT INTO {workers} AS w (id, host, pid, handler_keys, health, consumers, database_role, started_at, heartbeat_at, stopped_at)
SELECT $1::text::uuid, $2, $3::integer, $4, $5, '[]', session_user, at, at, at FROM (SELECT clock_timestamp() AS at OFFSET 0) AS now
ON CONFLICT (id) DO UPDATE SET host = EXCLUDED.host, pid = EXCLUDED.pid, handler_keys = EXCLUDED.handler_keys,
	started_at = EXCLUDED.started_at, heartbeat_at = EXCLUDED.heartbeat_at, stopped_at = EXCLUDED.stopped_at, released_at = NULL`

	workerLivesSQL = `SELECT id::text FROM {workers} WHERE id = $1::text::uuid AND released_at IS NULL`

	stopWorkerSQL = `UPDATE {workers} SET stopped_at = clock_timestamp() WHERE id = $1::text::uuid AND stopped_at IS NULL`

	// workersSQL has as its last column whether EvictHolders can see and end the sessions of the worker's role.
	workersSQL = `
SELECT id, host, pid, handler_keys, health, database_role, started_at, (extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000000)::bigint,
	stopped_at IS NOT NULL, COALESCE(stopped_at = started_at, false), released_at IS NOT NULL, clock_timestamp(),
	{evictable}
FROM {workers} LEFT JOIN pg_roles r ON r.rolname = database_role ORDER BY started_at, id`

	// markReleasedSQL takes the lock that claims share (see claimsLock) for itself. It cannot get it while a claim or an
	// accept is open. It does not wait: an accept whose process is gone may stay open for long.
	markReleasedSQL = `
WITH worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $1::text::uuid AND released_at IS NULL {release lock}
), marked AS (
	UPDATE {workers} w SET released_at = clock_timestamp() FROM worker WHERE w.id = worker.id RETURNING w.id
)
SELECT EXISTS (SELECT FROM marked) OR NOT EXISTS (SELECT FROM {workers} WHERE id = $1::text::uuid AND released_at IS NULL)`

	deleteWorkersSQL = `
DELETE FROM {workers} WHERE id = ANY ($1::text[]::uuid[]) AND (stopped_at IS NOT NULL OR released_at IS NOT NULL)`
)

// claimsLock finds a worker's row unless the worker is just being marked as released. It takes a lock until
// the transaction ends. Without it this could happen:
//
//  1. A claim reads that its worker lives.
//  2. The worker is marked as released, and its claims are looked for. There are none, because these
//     claims are not committed yet.
//  3. These claims are committed.
//
// With the lock, MarkReleased does nothing while a claim or an accept is open. If such a statement has begun and not
// yet come to the lock, its claims are found by later sweeps, which release every claim whose worker is gone. A lock of
// the row itself would be shared, too, and PostgreSQL gives each set of transactions that share a row's lock a new
// number, a multixact. A worker that accepts 3,000 messages a second would use up these numbers in 38 hours, and force
// a vacuum of the whole database, the application's tables included.
//
// Engines without such locks and without multixacts share the row's lock: the portable profile takes that. It is the
// weakest one, which heartbeats do not wait for.
const (
	claimsLock          = `AND pg_try_advisory_xact_lock_shared(` + claimsLockSQL + `)`
	claimsLockPortable  = `FOR KEY SHARE SKIP LOCKED`
	releaseLock         = `AND pg_try_advisory_xact_lock(` + claimsLockSQL + `)`
	releaseLockPortable = `FOR UPDATE SKIP LOCKED`
)

// evictable is true if our role is a member of the worker's role r, or was granted both predefined roles. Only
// superusers can end the sessions of superusers. Where no session is ended, no role is barred from that.
const evictable = `(COALESCE(pg_has_role(r.oid, 'USAGE'), false) OR pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE'))
		AND (current_setting('is_superuser') = 'on' OR NOT COALESCE(r.rolsuper, false))`

// claimsLockSQL names the advisory lock of a worker.
const claimsLockSQL = `hashtextextended(id::text, 0)`

func (p *Store) Heartbeat(ctx context.Context, w store.Worker, _ time.Time) error {
	written, err := store.Exec(ctx, p.Pool(ctx), p.Text(heartbeatSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
		base.HealthJSON(w), base.ConsumersJSON(w), w.Settings)
	if err == nil && written == 0 {
		err = store.ErrWorkerReleased
	}
	return base.Doing("heartbeat", err)
}

func (p *Store) RecordDrain(ctx context.Context, w store.Worker, _ time.Time) error {
	_, err := store.Exec(ctx, p.Pool(ctx), p.Text(recordDrainSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
		base.HealthJSON(w))
	return base.Doing("record drain", err)
}

func (p *Store) StopWorker(ctx context.Context, workerID string, _ time.Time) error {
	_, err := store.Exec(ctx, p.Pool(ctx), p.Text(stopWorkerSQL), workerID)
	return base.Doing("stop worker", err)
}

func (p *Store) Workers(ctx context.Context, _ time.Time) ([]store.WorkerState, error) {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil {
		return nil, base.Doing("list workers", err)
	}
	workers, err := store.Query(ctx, p.Pool(ctx), p.Text(workersSQL), func(rows *sql.Rows, w *store.WorkerState) error {
		var keys string
		var silent int64
		if err := rows.Scan(&w.ID, &w.Host, &w.PID, &keys, &w.Health, &w.DatabaseRole, &w.StartedAt, &silent, &w.Stopped,
			&w.Drains, &w.Released, &w.Read, &w.Evictable); err != nil {
			return err
		}
		w.StartedAt, w.SilentFor = w.StartedAt.UTC(), time.Duration(silent)*time.Microsecond
		base.ParseHandlerKeys(keys, w)
		return nil
	})
	return workers, base.Doing("list workers", err)
}

// evictSQL ends sessions that hold locks on statuses, which it finds by handler_statuses_pkey, or the lock of workers'
// claims. A row that an open transaction has changed carries the transaction's ID in xmax, and the transaction holds a
// lock on its own ID. A session to end waits for its client: between two statements or, if the network failed during
// one, for the rest of that one. Another sweeper's statement is not ended, because it is running. For LATERAL and
// OFFSET, see acceptKeysSQL, for the sub-selects completionsSQL.
const evictSQL = `
SELECT count(*) FILTER (WHERE CASE WHEN (pg_has_role(usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
	AND (current_setting('is_superuser') = 'on' OR NOT (SELECT rolsuper FROM pg_roles WHERE oid = usesysid)) THEN pg_terminate_backend(pid) END) FROM (
	SELECT DISTINCT l.pid, a.usesysid FROM (
		SELECT l.pid FROM unnest((SELECT $1::bigint[]), (SELECT $2::text[])) AS k(number, key)
		CROSS JOIN LATERAL (SELECT xmax FROM {statuses} WHERE message_number = k.number AND handler_key = k.key OFFSET 0) s
		JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.mode = 'ExclusiveLock' AND l.granted
		UNION ALL
		SELECT l.pid FROM unnest($3::text[]) AS w(id)
		JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (l.classid::bigint << 32 | l.objid::bigint) = ` + claimsLockSQL + `
	) l
	JOIN pg_stat_activity a ON a.pid = l.pid AND (a.state LIKE 'idle in transaction%' OR a.wait_event_type = 'Client')
) holders`

func (p *Store) EvictHolders(ctx context.Context, refs []store.Ref, workerIDs []string) (int, error) {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil {
		return 0, base.Doing("end open transactions", err)
	}
	if p.isPortable() {
		return p.Common.EvictHolders(ctx, refs, workerIDs)
	}
	numbers, keys := make([]int64, len(refs)), make([]string, len(refs))
	for i, ref := range refs {
		numbers[i], keys[i] = ref.MessageNumber, ref.HandlerKey
	}
	ended, err := store.Query(ctx, p.Pool(ctx), p.Text(evictSQL), store.Value[int], numbers, keys, workerIDs)
	if err != nil {
		return 0, base.Doing("end open transactions", err)
	}
	return ended[0], nil
}

func (p *Store) MarkReleased(ctx context.Context, workerID string, _ time.Time) error {
	done, err := store.Query(ctx, p.Pool(ctx), p.Text(markReleasedSQL), store.Value[bool], workerID)
	if err == nil && !done[0] {
		err = store.ErrWorkerBusy
	}
	return base.Doing("mark worker released", err)
}
