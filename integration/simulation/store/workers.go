package simulated

import (
	"context"
	"encoding/json"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/integration/simulation/database"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// claims names the locks that a worker's claims share, and that marking it as released has for itself.
const claims = `claims of workers`

// These statements judge and write by the database's clock.
const (
	lockWorkerSQL = `
SELECT id FROM (SELECT id FROM {workers} WHERE id = ?1 AND released_at IS NULL LIMIT -1)
WHERE lock_row('` + claims + `', id, 1, ` + free

	lockReleasedSQL = `SELECT lock_row('` + claims + `', ?1, 3, ` + free

	markReleasedSQL = `UPDATE {workers} SET released_at = clock(0) WHERE id = ?1 AND released_at IS NULL`

	heartbeatSQL = `
INSERT INTO {workers} (id, host, pid, handler_keys, health, consumers, settings, database_role, started_at, heartbeat_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '', clock(0), clock(0))
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, handler_keys = excluded.handler_keys, health = excluded.health,
	consumers = excluded.consumers, heartbeat_at = excluded.heartbeat_at
WHERE released_at IS NULL`

	stopWorkerSQL = `UPDATE {workers} SET stopped_at = clock(0) WHERE id = ?1 AND stopped_at IS NULL`

	acquireLeaseSQL = `
INSERT INTO {locks} (name, owner_id, expires_at) VALUES (?1, ?2, clock(?3))
ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id, expires_at = excluded.expires_at
WHERE owner_id = excluded.owner_id OR expires_at <= clock(0)`

	deleteLeasesSQL = `DELETE FROM {locks} WHERE expires_at < clock(?1)`

	rowsOfSQL = `
SELECT CAST(s.rowid AS text) FROM json_each(?1) k
JOIN {statuses} s ON s.message_number = json_extract(k.value, '$[0]') AND s.handler_key = json_extract(k.value, '$[1]')`
)

// lockWorker returns the worker's ID, empty if the worker is released or just being marked as released.
func (s *Store) lockWorker(ctx context.Context, pool gorm.ConnPool, workerID string) (string, error) {
	if workerID == "" {
		return "", nil
	}
	found, err := store.Query(ctx, pool, s.Text(lockWorkerSQL), store.Value[string], workerID)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return workerID, nil
}

// MarkReleased does not wait for a claim.
func (s *Store) MarkReleased(ctx context.Context, workerID string, _ time.Time) error {
	err := s.Transaction(ctx, func(pool gorm.ConnPool) error {
		if lives, err := s.Store.WorkerLives(ctx, workerID); err != nil || !lives {
			return err
		}
		alone, err := store.Query(ctx, pool, lockReleasedSQL, store.Value[bool], workerID)
		if err == nil && !alone[0] {
			err = store.ErrWorkerBusy
		}
		if err == nil {
			_, err = store.Exec(ctx, pool, s.Text(markReleasedSQL), workerID)
		}
		return err
	})
	return base.Doing("mark worker released", err)
}

// EvictHolders ends the sessions that hold locks and do not wait for one themselves.
func (s *Store) EvictHolders(ctx context.Context, refs []store.Ref, workerIDs []string) (int, error) {
	keys := make([][2]any, len(refs))
	for i, ref := range refs {
		keys[i] = [2]any{ref.MessageNumber, ref.HandlerKey}
	}
	rows, err := store.Query(ctx, s.Pool(ctx), s.Text(rowsOfSQL), store.Value[string], base.JSONList(keys))
	if err != nil {
		return 0, base.Doing("end open transactions", err)
	}
	ended, err := s.database.Terminate(ctx, true, s.table, rows...)
	if err != nil {
		return ended, base.Doing("end open transactions", err)
	}
	accepts, err := s.database.Terminate(ctx, true, claims, workerIDs...)
	return ended + accepts, base.Doing("end open transactions", err)
}

// Heartbeat goes by the database's clock.
func (s *Store) Heartbeat(ctx context.Context, w store.Worker, _ time.Time) error {
	written, err := store.Exec(ctx, s.Pool(ctx), s.Text(heartbeatSQL), w.ID, w.Host, w.PID, base.HandlerKeysJSON(w),
		base.HealthJSON(w), base.ConsumersJSON(w), w.Settings)
	if err == nil && written == 0 {
		err = store.ErrWorkerReleased
	}
	return base.Doing("heartbeat", err)
}

// RecordDrain goes by the database's clock.
func (s *Store) RecordDrain(ctx context.Context, w store.Worker, _ time.Time) error {
	return s.Store.RecordDrain(ctx, w, s.database.Now())
}

// StopWorker goes by the database's clock.
func (s *Store) StopWorker(ctx context.Context, workerID string, _ time.Time) error {
	_, err := store.Exec(ctx, s.Pool(ctx), s.Text(stopWorkerSQL), workerID)
	return base.Doing("stop worker", err)
}

// Workers measures silence by the database's clock.
func (s *Store) Workers(ctx context.Context, _ time.Time) ([]store.WorkerState, error) {
	now := s.database.Now()
	workers, err := s.Store.Workers(ctx, now)
	for i := range workers {
		workers[i].Read = now
	}
	return workers, err
}

// AcquireLeases goes by the database's clock. Each lease has a statement, so that others come between them.
func (s *Store) AcquireLeases(
	ctx context.Context, names []string, owner string, ttl time.Duration, _ time.Time,
) (held []string, err error) {
	for _, name := range names {
		acquired, err := store.Exec(ctx, s.Pool(ctx), s.Text(acquireLeaseSQL), name, owner, ttl.Microseconds())
		if err != nil {
			return nil, base.Doing("acquire lease "+name, err)
		}
		if acquired == 1 {
			held = append(held, name)
		}
	}
	return held, nil
}

// DeleteExpiredLeases goes by the database's clock.
func (s *Store) DeleteExpiredLeases(ctx context.Context, age time.Duration, _ time.Time) (int64, error) {
	deleted, err := store.Exec(ctx, s.Pool(ctx), s.Text(deleteLeasesSQL), -age.Microseconds())
	return deleted, base.Doing("delete expired leases", err)
}

const notifySQL = `SELECT notify('{statuses}', ?1)`

// payload is a notification's content, in JSON.
type payload struct {
	From string // the origin that ignores it; empty if none does
	Keys []string
}

// Notify notifies the listeners of other stores.
func (s *Store) Notify(ctx context.Context, handlerKeys ...string) error {
	return s.notify(ctx, s.Pool(ctx), payload{s.origin, handlerKeys})
}

// NotifyTx notifies all listeners when the transaction is committed.
func (s *Store) NotifyTx(ctx context.Context, tx *gorm.DB, handlerKeys ...string) error {
	pool, err := base.Joined(tx)
	if err != nil {
		return base.Doing("notify", err)
	}
	return s.notify(ctx, pool, payload{Keys: handlerKeys})
}

func (s *Store) notify(ctx context.Context, pool gorm.ConnPool, says payload) error {
	text, err := json.Marshal(says)
	if err == nil {
		_, err = store.Query(ctx, pool, s.Text(notifySQL), store.Value[bool], string(text))
	}
	return base.Doing("notify", err)
}

// Listen opens a connection for notifications.
func (s *Store) Listen(ctx context.Context) (store.Listener, error) {
	l, err := s.database.Listen(ctx, s.link, s.Text(`{statuses}`))
	if err != nil {
		return nil, base.Doing("listen", err)
	}
	return listener{l, s.origin}, nil
}

type listener struct {
	*database.Listener
	origin string
}

func (l listener) Next(ctx context.Context, quiet time.Duration) ([]string, error) {
	for {
		text, err := l.Listener.Next(ctx, quiet)
		if err != nil {
			return nil, base.Doing("listen", err)
		}
		var says payload
		if err := json.Unmarshal([]byte(text), &says); err != nil || says.From == "" || says.From != l.origin {
			return says.Keys, nil
		}
	}
}
