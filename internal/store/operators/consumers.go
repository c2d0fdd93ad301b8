package operators

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// storedConsumers reads a whole table, which has one row per process.
const storedConsumers = `
SELECT CAST(id AS text), consumers FROM {workers} WHERE stopped_at IS NULL AND released_at IS NULL AND consumers <> '[]'
ORDER BY id LIMIT $1`

func (q Queries) StoredConsumers(ctx context.Context, pool gorm.ConnPool, limit int) ([]store.WorkerConsumers, error) {
	return query(ctx, q, pool, storedConsumers, func(rows *sql.Rows, w *store.WorkerConsumers) error {
		return rows.Scan(&w.WorkerID, &w.Consumers)
	}, limit)
}

// storedSettings reads a whole table, which has one row per process.
const storedSettings = `
SELECT CAST(id AS text), settings FROM {workers} WHERE stopped_at IS NULL AND released_at IS NULL AND settings <> ''
ORDER BY started_at DESC, id LIMIT $1`

func (q Queries) StoredSettings(ctx context.Context, pool gorm.ConnPool, limit int) ([]store.WorkerSettings, error) {
	return query(ctx, q, pool, storedSettings, func(rows *sql.Rows, w *store.WorkerSettings) error {
		return rows.Scan(&w.WorkerID, &w.Settings)
	}, limit)
}

// pendingRequests reads a whole table, which has few rows.
const pendingRequests = `
SELECT channel, topic, "partition", CAST(id AS text), record_offset, decision, actor, requested_at FROM {requests}
WHERE requested_at > $1 ORDER BY channel, topic, "partition" LIMIT $2`

func (q Queries) AllPartitionRequests(ctx context.Context, pool gorm.ConnPool, since time.Time, limit int) (
	[]models.PartitionRequest, error,
) {
	return query(ctx, q, pool, pendingRequests, base.ScanPartitionRequest, q.form.Time(since), limit)
}

const (
	// requestPartition uses the primary key.
	requestPartition = `
INSERT INTO {requests} (channel, topic, "partition", id, record_offset, decision, actor, requested_at)
VALUES ($1, $2, $3, $4{as ID}, $5, $6, $7, $8)
ON CONFLICT (channel, topic, "partition") DO UPDATE SET id = excluded.id, record_offset = excluded.record_offset,
	decision = excluded.decision, actor = excluded.actor, requested_at = excluded.requested_at`

	// expiredRequests reads a whole table, which has few rows.
	expiredRequests = `DELETE FROM {requests} WHERE requested_at < $1`
)

func (q Queries) RequestPartition(ctx context.Context, pool gorm.ConnPool, r models.PartitionRequest,
	expired time.Time) error {
	if _, err := q.exec(ctx, pool, expiredRequests, q.form.Time(expired)); err != nil {
		return err
	}
	_, err := q.exec(ctx, pool, requestPartition, r.Channel, r.Topic, r.Partition, r.ID, r.Offset, r.Decision, r.Actor,
		q.form.Time(r.RequestedAt))
	return err
}

// These statements use partitions_pkey, or read the whole table, which has one row per partition.
const (
	topicProgress = `
SELECT channel, group_id, topic, max(CASE WHEN inline THEN 1 ELSE 0 END), sum(CASE WHEN "partition" >= 0 THEN 1 ELSE 0 END),
	sum(CASE WHEN caught_up_at IS NULL THEN 1 ELSE 0 END), min(caught_up_at), min(declared_at), max(undeclared_for)
FROM {partitions} GROUP BY channel, group_id, topic
ORDER BY sum(CASE WHEN caught_up_at IS NULL THEN 1 ELSE 0 END) = 0, min(caught_up_at), channel, group_id, topic LIMIT $1`

	forgetTopic = `DELETE FROM {partitions} WHERE channel = $1 AND group_id = $2 AND topic = $3 AND declared_at < $4`

	countPartitions = `SELECT count(*) FROM {partitions} WHERE channel = $1 AND group_id = $2 AND topic = $3`
)

func (q Queries) TopicProgress(ctx context.Context, pool gorm.ConnPool, limit int) ([]store.TopicProgress, error) {
	return query(ctx, q, pool, topicProgress, func(rows *sql.Rows, t *store.TopicProgress) error {
		var inline int
		var undeclared int64
		var caughtUp, declared store.Stamp
		err := rows.Scan(&t.Channel, &t.GroupID, &t.Topic, &inline, &t.Partitions, &t.Unread, &caughtUp, &declared,
			&undeclared)
		t.Inline, t.CaughtUpAt, t.DeclaredAt = inline > 0, caughtUp.Time, declared.Time
		t.UndeclaredFor = time.Duration(undeclared) * time.Second
		return err
	}, limit)
}

func (q Queries) ForgetTopic(ctx context.Context, pool gorm.ConnPool, channel, groupID, topic string,
	declaredBefore time.Time) (forgotten, known int64, err error) {
	forgotten, err = q.exec(ctx, pool, forgetTopic, channel, groupID, topic, q.form.Time(declaredBefore))
	if err == nil && forgotten == 0 {
		known, err = q.number(ctx, pool, countPartitions, channel, groupID, topic)
	}
	return forgotten, known, err
}

// leases reads a whole table, which has few rows.
const leases = `SELECT name, CAST(owner_id AS text), expires_at, {clock} FROM {locks} ORDER BY name LIMIT $1`

func (q Queries) AllLeases(ctx context.Context, pool gorm.ConnPool, now time.Time, limit int) (
	[]store.HeldLease, error,
) {
	return query(ctx, q, pool, leases, func(rows *sql.Rows, l *store.HeldLease) error {
		var expires, clock store.Stamp
		err := rows.Scan(&l.Name, &l.OwnerID, &expires, &clock)
		if clock.IsZero() { // the database has no clock that is better than ours
			clock.Time = now
		}
		l.ExpiresIn = expires.Sub(clock.Time)
		return err
	}, limit)
}

// lastHeartbeat reads a whole table, which has one row per process, and one row of meta by its primary key.
const lastHeartbeat = `
SELECT (SELECT "value" FROM {meta} WHERE "key" = 'name'), max(heartbeat_at), {clock} FROM {workers}`

func (q Queries) LastHeartbeat(ctx context.Context, pool gorm.ConnPool, now time.Time) (
	h store.LastHeartbeat, err error,
) {
	found, err := one(ctx, q, pool, lastHeartbeat, func(rows *sql.Rows, h *store.LastHeartbeat) error {
		var inbox sql.NullString
		var at, clock store.Stamp
		err := rows.Scan(&inbox, &at, &clock)
		if clock.IsZero() { // the database has no clock that is better than ours
			clock.Time = now
		}
		h.Inbox, h.At, h.Now = inbox.String, at.Time, clock.Time
		return err
	})
	if err != nil {
		return h, err
	}
	return *found, nil
}
