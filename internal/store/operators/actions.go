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

// retry uses the index on open statuses. The time is limited by the database's clock (see atSQL in the PostgreSQL
// store): if an operator's machine is ahead of it, nothing would run until then. The status is due from now on and not
// since it was accepted, so that thousands of retried ones do not come before everything newer. Until its retry, only a
// manual deletion of the message, and the mark that a copy is published, change a poisoned row. A row that another
// operator has retried or discarded is no longer poisoned, and has another version if it is poisoned again. A failing
// row may be claimed first, and then is not changed.
const retry = `
UPDATE {statuses} AS s SET error_count = 0, abandoned_count = 0, interrupted_count = 0, requeued_count = s.requeued_count + 1, is_poisoned = false, published_at = NULL, next_attempt_at = {at},
	poisoned_at = NULL, attempts = {attempts with a retry}, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + ` AND (s.is_poisoned OR NOT s.is_waiting AND s.processing_started_at IS NULL AND s.last_error IS NOT NULL AND s.error_count + s.abandoned_count + s.interrupted_count > 0)
RETURNING {changed}`

// discard uses the index on open statuses, see retry. A row that is claimed first is not changed: its handler runs, and
// its lane must not continue beside it.
const discard = `
UPDATE {statuses} AS s SET completed_at = {at}, outcome = 'discarded', abandoned_count = 0, interrupted_count = 0, is_poisoned = false, next_attempt_at = NULL, ` + unclaimed + `
FROM {refs} AS c
WHERE ` + isRef + ` AND (s.is_poisoned OR s.processing_started_at IS NULL)
RETURNING {changed}`

// reschedule uses the index on open statuses, see retry. A row that waits in its lane goes on waiting.
const reschedule = `
UPDATE {statuses} AS s SET next_attempt_at = CASE WHEN $3 > {at} THEN $3 ELSE {at} END, version = s.version + 1
FROM {refs} AS c
WHERE ` + isRef + ` AND NOT s.is_poisoned AND s.processing_started_at IS NULL
RETURNING {changed}`

// rerun finds the row by the primary key: no index has completed rows by ID. The caller has locked the message, so that
// cleanup does not delete the row. Published_at and poisoned_at are of an earlier life of the row.
const rerun = `
UPDATE {statuses} AS s SET completed_at = NULL, outcome = '', error_count = 0, abandoned_count = 0, interrupted_count = 0, requeued_count = s.requeued_count + 1,
	published_at = NULL, next_attempt_at = {at}, poisoned_at = NULL, attempts = {attempts with a retry}, ` + unclaimed + `
WHERE s.message_number = $1 AND s.handler_key = $3 AND s.version = $4 AND s.completed_at IS NOT NULL AND s.outcome IN ('processed', 'discarded')
RETURNING {changed}`

// releaseClaim uses the index on open statuses. It counts like a claim whose worker vanished, but the status is due at
// once: the operator has judged what recovery only suspects. It does not wait for the transaction of a handler, which
// holds the row's lock until it ends.
const releaseClaim = `
WITH free AS MATERIALIZED (SELECT id FROM {statuses} WHERE id = $1{as ID} AND ` + base.OpenSQL + ` {skip locked})
UPDATE {statuses} AS s SET abandoned_count = s.abandoned_count + 1, next_attempt_at = {at}, attempts = {attempts with a release}, ` + unclaimed + `
WHERE s.id = $1{as ID} AND s.id IN (SELECT id FROM free) AND s.version = $3 AND s.processing_started_at IS NOT NULL AND ` + base.OpenSQL + `
RETURNING {changed}`

// ReleasedError is the error of an attempt whose claim an operator has released.
const ReleasedError = "an operator released its claim"

const (
	unclaimed = `processing_started_at = NULL, worker_id = NULL, is_waiting = false, holds_lane = false, version = s.version + 1`
	isRef     = `{by id} s.id = c.id AND (c.version = 0 OR s.version = c.version) AND ` + base.OpenSQL
)

func (q Queries) RetryStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID, now time.Time) (
	[]store.ChangedStatus, error,
) {
	return q.change(ctx, pool, retry, refs, now)
}

func (q Queries) DiscardStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID, now time.Time) (
	[]store.ChangedStatus, error,
) {
	return q.change(ctx, pool, discard, refs, now)
}

func (q Queries) RescheduleStatuses(ctx context.Context, pool gorm.ConnPool, refs []store.VersionedID,
	at, now time.Time) ([]store.ChangedStatus, error) {
	return q.change(ctx, pool, reschedule, refs, now, q.form.Time(at))
}

func (q Queries) change(ctx context.Context, pool gorm.ConnPool, statement string, refs []store.VersionedID,
	now time.Time, more ...any) ([]store.ChangedStatus, error) {
	rows := make([][2]any, len(refs))
	for i, ref := range refs {
		rows[i] = [2]any{ref.ID, ref.Version}
	}
	return query(ctx, q, pool, statement, scanChanged,
		append([]any{base.JSONList(rows), q.form.Time(now)}, more...)...)
}

func (q Queries) RerunStatus(ctx context.Context, pool gorm.ConnPool, messageNumber int64, handlerKey string,
	version int64, now time.Time) (*store.ChangedStatus, error) {
	return one(ctx, q, pool, rerun, scanChanged, messageNumber, q.form.Time(now), handlerKey, version)
}

func (q Queries) ReleaseClaim(ctx context.Context, pool gorm.ConnPool, ref store.VersionedID, now time.Time) (
	*store.ChangedStatus, error,
) {
	return one(ctx, q, pool, releaseClaim, scanChanged, ref.ID, q.form.Time(now), ref.Version)
}

// scanChanged scans {changed}.
func scanChanged(rows *sql.Rows, c *store.ChangedStatus) error {
	var handler, key *int64
	err := rows.Scan(&c.ID, &c.MessageID, &c.HandlerKey, &handler, &key)
	c.Lane = laneOf(handler, key)
	return err
}

// stateNow uses the index on open statuses.
const stateNow = `
SELECT message_number, handler_key, version, is_poisoned, processing_started_at, is_waiting FROM {statuses} WHERE id = $1 AND ` + base.OpenSQL

func (q Queries) OpenState(ctx context.Context, pool gorm.ConnPool, statusID string) (*models.HandlerStatus, error) {
	return one(ctx, q, pool, stateNow, func(rows *sql.Rows, s *models.HandlerStatus) error {
		var processing store.Stamp
		err := rows.Scan(&s.MessageNumber, &s.HandlerKey, &s.Version, &s.IsPoisoned, &processing, &s.IsWaiting)
		s.ProcessingStartedAt = processing.Pointer()
		return err
	}, statusID)
}

// These use the primary key.
const (
	pause = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, true, $2)
ON CONFLICT (handler_key) DO UPDATE SET paused = true, updated_at = excluded.updated_at`

	resume = `UPDATE {handlers} SET paused = false, updated_at = $2 WHERE handler_key = $1 AND paused`
)

func (q Queries) PauseKey(ctx context.Context, pool gorm.ConnPool, handlerKey string, now time.Time) (bool, error) {
	_, err := q.exec(ctx, pool, pause, handlerKey, q.form.Time(now))
	return err == nil, err
}

func (q Queries) ResumeKey(ctx context.Context, pool gorm.ConnPool, handlerKey string, now time.Time) (bool, error) {
	changed, err := q.exec(ctx, pool, resume, handlerKey, q.form.Time(now))
	return changed > 0, err
}

// pausedKeys reads a whole table, which has a row for each handler that was ever paused.
const pausedKeys = `SELECT handler_key FROM {handlers} WHERE paused ORDER BY handler_key LIMIT $1`

// lockPaused keeps a resume waiting until a backfill's transaction has ended. Otherwise later rows could run while the
// backfill waits for the lock of a message, and it would then add an earlier one.
const lockPaused = pausedKeys + ` {for update}`

func (q Queries) PausedKeys(ctx context.Context, pool gorm.ConnPool, limit int, locked bool) ([]string, error) {
	statement := pausedKeys
	if locked {
		statement = lockPaused
	}
	return query(ctx, q, pool, statement, store.Value[string], limit)
}

// These use the messages' number and the statuses' primary key.
const (
	lockID = `SELECT number FROM {ids} WHERE number = $1 {for update}`

	lockMessage = `
SELECT id, namespace, type, received_at FROM {messages} WHERE number = $1 {for update}`

	deleteStatuses = `
DELETE FROM {statuses} AS s WHERE s.message_number = $1 AND s.processing_started_at IS NULL RETURNING {changed}`

	statusesLeft = `SELECT count(*) FROM {statuses} WHERE message_number = $1`

	deleteMessage = `DELETE FROM {messages} WHERE number = $1`
)

func (q Queries) DeleteMessage(ctx context.Context, pool gorm.ConnPool, number int64) (
	deleted *models.Message, statuses []store.ChangedStatus, left int64, err error,
) {
	// Lock the message's ID and the message first, as accepts and cleanup do. An accept that adds statuses waits, and then
	// finds no message.
	if _, err = q.exec(ctx, pool, lockID, number); err != nil {
		return nil, nil, 0, err
	}
	deleted, err = one(ctx, q, pool, lockMessage, func(rows *sql.Rows, m *models.Message) error {
		var received store.Stamp
		err := rows.Scan(&m.ID, &m.Namespace, &m.Type, &received)
		m.ReceivedAt = received.Time
		return err
	}, number)
	if err != nil || deleted == nil {
		return nil, nil, 0, err
	}
	// This waits for a claim that is being committed, and then sees it.
	if statuses, err = query(ctx, q, pool, deleteStatuses, scanChanged, number); err != nil {
		return nil, nil, 0, err
	}
	if left, err = q.number(ctx, pool, statusesLeft, number); err == nil && left == 0 {
		_, err = q.exec(ctx, pool, deleteMessage, number)
	}
	return deleted, statuses, left, err
}
