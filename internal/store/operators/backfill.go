package operators

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// listUnhandled reads messages by the index on (received_at, number). It finds the handler's rows by the statuses'
// primary key, message by message: a join may be planned as a scan of the whole table.
const listUnhandled = `
WITH walked AS (
	SELECT number, id, namespace, type, received_at, {received as stored} AS at, serialized_properties FROM {messages}
	WHERE (received_at, number) > ($1, $2) AND received_at < $4 ORDER BY received_at, number LIMIT $5
)
SELECT number, at, received_at, id, CASE WHEN namespace = $6 AND (type = $7 OR $8) THEN
		(SELECT count(*) FROM {statuses} s WHERE s.message_number = walked.number AND s.handler_key {= any text}) = 0 ELSE false END,
	CASE WHEN $9 THEN substr(serialized_properties, 1, $10) ELSE '' END
FROM walked ORDER BY received_at, number`

func (q Queries) ScanUnhandled(ctx context.Context, pool gorm.ConnPool, scan store.UnhandledScan) (
	[]store.UnhandledMessage, error,
) {
	args, err := q.unhandledArguments(scan)
	if err != nil {
		return nil, err
	}
	return query(ctx, q, pool, listUnhandled, func(rows *sql.Rows, m *store.UnhandledMessage) error {
		var received store.Stamp
		var at listed
		err := rows.Scan(&m.Place.Number, &at, &received, &m.ID, &m.Lacks, &m.Properties)
		m.Place.At, m.ReceivedAt = string(at), received.Time
		return err
	}, args...)
}

func (q Queries) unhandledArguments(scan store.UnhandledScan) ([]any, error) {
	at, err := q.listTime(scan.After.At)
	return []any{at, scan.After.Number, base.JSONList(scan.Keys), q.form.Time(scan.To), scan.Limit, scan.Namespace,
		scan.Type, scan.AnyType, scan.ReadsProperties > 0, scan.ReadsProperties}, err
}

func (q Queries) SameHandler(ctx context.Context, pool gorm.ConnPool, keys []string) ([]string, error) {
	legacy, err := q.db.LegacyKeys(ctx, pool)
	return base.SameHandler(legacy, keys), err
}

// lockUnhandled uses the unique index on the messages' numbers. It keeps cleanup and accepts away from them. {ids} are
// the messages, or where these are partitioned a table of the IDs of those that cleanup has not forgotten.
const lockUnhandled = `SELECT number FROM {ids} WHERE number {= any} {as accepts lock}`

func (q Queries) LockMessages(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]int64, error) {
	return query(ctx, q, pool, lockUnhandled, store.Value[int64], base.JSONList(numbers))
}

// addStatuses finds a message's rows, and conflicts, by the statuses' primary key. It is a separate statement after the
// lock, so that it sees the rows of an accept that held the lock before. A row gets the earliest sequence of its
// message: only another handler's row shows when the message was accepted, since numbers do not follow the order of one
// accept. A message without any row is about to be cleaned up.
const addStatuses = `
INSERT INTO {statuses} (id, message_number, message_id, handler_key, sequence, message_bytes, created_at, lane_handler, lane_key, next_attempt_at)
SELECT m.id, m.number, m.message_id, $4, (SELECT min(s.sequence) FROM {statuses} s WHERE s.message_number = m.number),
	(SELECT max(s.message_bytes) FROM {statuses} s WHERE s.message_number = m.number), {at}, m.lane_handler, m.lane_key,
	CASE WHEN m.not_before > {at} THEN m.not_before END
FROM (
	SELECT CAST({0} AS bigint) AS number, {1} AS message_id, {2 as ID} AS id, CAST({3} AS bigint) AS lane_handler, CAST({4} AS bigint) AS lane_key,
		{5 as time} AS not_before
	FROM {list}
) m
WHERE (SELECT count(*) FROM {statuses} s WHERE s.message_number = m.number AND s.handler_key {= any text}) = 0
	AND (SELECT min(s.sequence) FROM {statuses} s WHERE s.message_number = m.number) IS NOT NULL
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id`

func (q Queries) AddStatuses(ctx context.Context, pool gorm.ConnPool, key string, keys []string,
	statuses []store.AddedStatus, now time.Time) ([]string, error) {
	rows := make([][6]any, len(statuses))
	for i, s := range statuses {
		rows[i] = [6]any{s.MessageNumber, s.MessageID, s.ID, nil, nil, q.form.Time(s.NotBefore)}
		if s.Lane != nil {
			rows[i][3], rows[i][4] = s.Lane.Handler, s.Lane.Key
		}
	}
	return query(ctx, q, pool, addStatuses, store.Value[string], base.JSONList(rows), q.form.Time(now),
		base.JSONList(keys), key)
}
