package store

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Content cannot travel as JSON, so messages go in as rows of values; the
// number of rows per statement is one of these, so that few texts are ever
// prepared. Which are new, the primary key decides.
//
// The numbers count up from the last one given out or, where somebody has put in
// rows by hand, from the highest stored, by the index on it. Whether SQLite asks
// for that before it inserts the first row or again for each, the rows' places
// among the values keep them apart.
var sqliteChunks = []int{64, 16, 4, 1}

const (
	sqliteAcceptNew = `
INSERT INTO {messages} (id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at)
VALUES %s ON CONFLICT (id, namespace) DO NOTHING RETURNING id, namespace, number`

	sqliteAcceptRow = `(?, ?, max((SELECT COALESCE(max(number), 0) FROM {messages}), ` +
		`COALESCE((SELECT CAST("value" AS INTEGER) FROM {meta} WHERE "key" = 'number'), 0)) + %d, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// By the messages' primary key. No lock: there is one writer, and it is us.
const sqliteAcceptKnown = `
SELECT m.id, m.namespace, m.number, m.type, m.source, m.received_at, m.content FROM json_each(?1) k
JOIN {messages} m ON m.id = json_extract(k.value, '$[0]') AND m.namespace = json_extract(k.value, '$[1]')`

// By the unique index on (message_number, handler_key).
const sqliteAcceptKeys = `
SELECT s.message_number, s.handler_key FROM json_each(?1) k JOIN {statuses} s ON s.message_number = k.value`

// The last sequence and the last number given out are kept in rows of their own,
// by the primary key: an index on the sequence would cost on every insert, rowids
// may change with VACUUM, and the highest number goes with its message. One that
// is given out twice would meet the statuses of a message that was deleted where
// foreign keys are off. The messages are stored already: the highest number is
// read by its index.
const sqliteCounters = `
UPDATE {meta} SET "value" = CASE "key"
	WHEN 'sequence' THEN CAST("value" AS INTEGER) + ?1
	ELSE max(CAST("value" AS INTEGER), (SELECT COALESCE(max(number), 0) FROM {messages})) END
WHERE "key" IN ('number', 'sequence') RETURNING "key", CAST("value" AS INTEGER) - ?1`

// Made from what is stored where they are missing: once.
const sqliteMakeCounters = `
INSERT INTO {meta} ("key", "value") VALUES
	('number', (SELECT COALESCE(max(number), 0) FROM {messages})),
	('sequence', (SELECT COALESCE(max(sequence), 0) FROM {statuses}))
ON CONFLICT ("key") DO NOTHING`

// Conflicts by the unique index on (message_number, handler_key).
const sqliteAcceptStatuses = `
INSERT INTO {statuses} (id, message_id, handler_key, sequence, created_at, lane_handler, lane_key, message_number)
SELECT json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'), ?2 + r.key + 1, ?3,
	json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]')
FROM json_each(?1) r WHERE true
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id, false`

// The same with statuses that are claimed as they are inserted, for hand-off
// (contract 5.17); the worker by its primary key.
const sqliteAcceptClaimed = `
INSERT INTO {statuses} (id, message_id, handler_key, sequence, created_at, lane_handler, lane_key, message_number, processing_started_at, worker_id)
SELECT json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'), ?2 + r.key + 1, ?3,
	json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]'), CASE WHEN w.id IS NOT NULL THEN ?3 END, w.id
FROM json_each(?1) r
LEFT JOIN {workers} w ON w.id = ?4 AND w.released_at IS NULL AND w.stopped_at IS NULL AND json_extract(r.value, '$[6]')
WHERE true
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id, worker_id IS NOT NULL`

// By the primary key.
const sqliteAcceptDelete = `DELETE FROM {statuses} WHERE id IN (SELECT value FROM json_each(?1))`

// Conflicts by the unique index on the coordinates. Rare: one by one.
const sqliteAcceptRejected = `
INSERT INTO {rejected} (id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, rejected_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (channel, topic, "partition", record_offset, record_timestamp) DO NOTHING`

// sqliteAcceptTexts are the statements by their number of rows.
var sqliteAcceptTexts = func() map[int]string {
	texts := make(map[int]string, len(sqliteChunks))
	for _, size := range sqliteChunks {
		rows := make([]string, size)
		for i := range rows {
			rows[i] = fmt.Sprintf(sqliteAcceptRow, i+1)
		}
		texts[size] = fmt.Sprintf(sqliteAcceptNew, strings.Join(rows, ", "))
	}
	return texts
}()

func (s *sqlite) Accept(ctx context.Context, batch AcceptBatch) ([]Accepted, error) {
	return acceptRetrying(ctx, s.transaction, s, batch, nil)
}

func (s *sqlite) AcceptTx(ctx context.Context, tx *gorm.DB, batch AcceptBatch) ([]Accepted, error) {
	pool, err := joined(tx)
	if err != nil {
		return nil, doing("accept", err)
	}
	results, err := accept(ctx, pool, s, batch)
	return results, doing("accept", err)
}

func (s *sqlite) insertNew(ctx context.Context, pool gorm.ConnPool, messages []*NewMessage, _ []statusRow, _ string, _ bool, now time.Time) ([]storedNumber, []claimedRow, error) {
	received := SQLiteTime(now)
	handled := make(map[identity]bool, len(messages))
	for _, m := range messages {
		handled[m.identity()] = len(m.Handlers) > 0
	}
	var inserted []storedNumber
	for _, size := range sqliteChunks {
		for len(messages) >= size {
			args := make([]any, 0, size*10)
			for _, m := range messages[:size] {
				args = append(args, m.ID, m.Namespace, m.TransportName, m.Type, m.Source, filled(m.Content), m.ContentType, m.SerializedProperties, orNull(m.OrderingKey), received)
			}
			rows, err := Query(ctx, pool, s.text(sqliteAcceptTexts[size]), scanStoredNumber, args...)
			if err != nil {
				return nil, nil, err
			}
			inserted = append(inserted, rows...)
			messages = messages[size:]
		}
	}
	// Where statuses follow, the counters move with them.
	if len(inserted) > 0 && !slices.ContainsFunc(inserted, func(m storedNumber) bool { return handled[m.identity] }) {
		if _, err := s.takeSequence(ctx, pool, 0); err != nil {
			return nil, nil, err
		}
	}
	return inserted, nil, nil
}

// orNull keeps a missing key apart from an empty one: some drivers store a nil
// slice as an empty blob.
func orNull(key []byte) any {
	if key == nil {
		return nil
	}
	return key
}

// insertsStatuses: they follow in one statement for the whole batch.
func (s *sqlite) insertsStatuses() bool { return false }

func (s *sqlite) lockKnown(ctx context.Context, pool gorm.ConnPool, messages []*NewMessage) ([]known, error) {
	keys, contents := make([][2]string, len(messages)), make(map[identity][]byte, len(messages))
	for i, message := range messages {
		keys[i], contents[message.identity()] = [2]string{message.ID, message.Namespace}, message.Content
	}
	list, err := jsonList(keys)
	if err != nil {
		return nil, err
	}
	return Query(ctx, pool, s.text(sqliteAcceptKnown), func(rows *sql.Rows, k *known) error {
		var received anyTime
		var content sql.RawBytes // compared here, kept nowhere
		if err := rows.Scan(&k.id, &k.namespace, &k.number, &k.messageType, &k.source, &received, &content); err != nil {
			return err
		}
		k.receivedAt, k.contentDiffers = received.Time, !bytes.Equal(content, contents[k.identity])
		return nil
	}, list)
}

func (s *sqlite) handlerKeys(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]handledBy, error) {
	list, err := jsonList(numbers)
	if err != nil {
		return nil, err
	}
	return Query(ctx, pool, s.text(sqliteAcceptKeys), scanHandledBy, list)
}

func (s *sqlite) insertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []statusRow, worker string, now time.Time) ([]string, []claimedRow, error) {
	before, err := s.takeSequence(ctx, pool, len(statuses))
	if err != nil {
		return nil, nil, err
	}
	rows := make([][7]any, len(statuses))
	for i, row := range statuses {
		rows[i] = [7]any{row.id, row.messageID, row.handlerKey, nil, nil, row.number, row.claim}
		if row.lane != nil {
			rows[i][3], rows[i][4] = row.lane.Handler, row.lane.Key
		}
	}
	list, err := jsonList(rows)
	if err != nil {
		return nil, nil, err
	}
	statement, args := sqliteAcceptStatuses, []any{list, before, SQLiteTime(now)}
	if worker != "" {
		statement, args = sqliteAcceptClaimed, append(args, worker)
	}
	var claimed []claimedRow
	added, err := Query(ctx, pool, s.text(statement), func(rows *sql.Rows, id *string) error {
		var taken bool
		if err := rows.Scan(id, &taken); err != nil {
			return err
		}
		if taken {
			claimed = append(claimed, claimedRow{id: *id, createdAt: storedTime(now)})
		}
		return nil
	}, args...)
	return added, claimed, err
}

// takeSequence reserves count sequences and returns the one before the first. It
// also notes which numbers the messages stored so far have taken.
func (s *sqlite) takeSequence(ctx context.Context, pool gorm.ConnPool, count int) (int64, error) {
	for attempt := 0; ; attempt++ {
		before := map[string]int64{}
		_, err := Query(ctx, pool, s.text(sqliteCounters), func(rows *sql.Rows, value *int64) error {
			var key string
			err := rows.Scan(&key, value)
			before[key] = *value
			return err
		}, count)
		if err != nil {
			return 0, err
		}
		if len(before) == 2 {
			return before["sequence"], nil
		}
		if attempt > 0 {
			return 0, fmt.Errorf("no sequence for %d statuses: the counters were not stored", count)
		}
		if _, err := Exec(ctx, pool, s.text(sqliteMakeCounters)); err != nil {
			return 0, err
		}
	}
}

func (s *sqlite) deleteStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) error {
	list, err := jsonList(ids)
	if err != nil {
		return err
	}
	_, err = Exec(ctx, pool, s.text(sqliteAcceptDelete), list)
	return err
}

func (s *sqlite) insertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error {
	for _, r := range rejected {
		_, err := Exec(ctx, pool, s.text(sqliteAcceptRejected), r.ID, r.Channel, r.Topic, r.Partition, r.Offset,
			SQLiteTime(r.Timestamp), orNull(r.Key), orNull(r.Value), r.Headers, r.Reason, SQLiteTime(r.RejectedAt))
		if err != nil {
			return err
		}
	}
	return nil
}
