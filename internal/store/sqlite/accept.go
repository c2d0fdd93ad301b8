package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// chunks are the possible numbers of messages per statement. Content cannot be passed as JSON, so messages are passed
// as rows of VALUES. A few fixed numbers mean that only a few statements are ever prepared.
var chunks = []int{64, 16, 4, 1}

// acceptTextsSQL maps a number of messages to the statement that inserts them. The primary key decides which messages
// are new.
var acceptTextsSQL = func() map[int]string {
	texts := make(map[int]string, len(chunks))
	for _, size := range chunks {
		rows := strings.Repeat(", (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", size)[len(", "):]
		texts[size] = `
INSERT INTO {messages} (id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at)
VALUES ` + rows + ` ON CONFLICT (id, namespace) DO NOTHING RETURNING number`
	}
	return texts
}()

// acceptKnownSQL uses the messages' primary key. It needs no lock, because this transaction is the only writer.
const acceptKnownSQL = `
SELECT m.id, m.namespace, m.number, m.type, m.source, m.received_at, m.content,
	length(CAST(m.serialized_properties AS blob)), ` + base.SealedTerm + ` FROM json_each(?1) k
JOIN {messages} m ON m.id = json_extract(k.value, '$[0]') AND m.namespace = json_extract(k.value, '$[1]')`

// acceptKeysSQL uses the statuses' primary key.
const acceptKeysSQL = `
SELECT s.message_number, s.handler_key FROM json_each(?1) k JOIN {statuses} s ON s.message_number = k.value
WHERE s.handler_key IN (SELECT value FROM json_each(?2))`

// takeNumbersSQL advances the counter of message numbers, a row found by its primary key. If rows were inserted by
// hand, it continues after the highest stored number, which is read by its index. That number alone is not enough: it
// disappears with its message, and a number that is given out twice would match the statuses of a deleted message where
// foreign keys are off.
const takeNumbersSQL = `
UPDATE {meta} SET "value" = max(CAST("value" AS INTEGER), (SELECT COALESCE(max(number), 0) FROM {messages})) + ?1
WHERE "key" = 'number' RETURNING CAST("value" AS INTEGER) - ?1`

// takeSequencesSQL advances the counter of sequences, a row found by its primary key. An index on the sequence would
// cost on every insert, and rowids may change with VACUUM.
const takeSequencesSQL = `
UPDATE {meta} SET "value" = CAST("value" AS INTEGER) + ?1 WHERE "key" = 'sequence' RETURNING CAST("value" AS INTEGER) - ?1`

// makeCountersSQL creates missing counters from the stored rows. It runs once per inbox.
const makeCountersSQL = `
INSERT INTO {meta} ("key", "value") VALUES
	('number', (SELECT COALESCE(max(number), 0) FROM {messages})),
	('sequence', (SELECT COALESCE(max(sequence), 0) FROM {statuses}))
ON CONFLICT ("key") DO NOTHING`

// acceptStatusesSQL finds conflicts by the primary key.
const acceptStatusesSQL = `
INSERT INTO {statuses} (id, message_id, handler_key, sequence, created_at, lane_handler, lane_key, message_number, message_bytes, next_attempt_at)
SELECT json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'), ?2 + r.key + 1, ?3,
	json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]'), json_extract(r.value, '$[6]'), json_extract(r.value, '$[7]')
FROM json_each(?1) r WHERE true
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id, false`

// acceptClaimedSQL is acceptStatusesSQL with statuses that are claimed as they are inserted, for local dispatch. It
// finds the worker by its primary key.
const acceptClaimedSQL = `
INSERT INTO {statuses} (id, message_id, handler_key, sequence, created_at, lane_handler, lane_key, message_number, message_bytes, next_attempt_at, processing_started_at, worker_id)
SELECT json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'), ?2 + r.key + 1, ?3,
	json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]'), json_extract(r.value, '$[6]'), json_extract(r.value, '$[7]'),
	CASE WHEN w.id IS NOT NULL THEN ?3 END, w.id
FROM json_each(?1) r
LEFT JOIN {workers} w ON w.id = ?4 AND w.released_at IS NULL AND w.stopped_at IS NULL AND json_extract(r.value, '$[8]')
WHERE true
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id, worker_id IS NOT NULL`

// acceptDeleteSQL uses the index on open statuses.
const acceptDeleteSQL = `DELETE FROM {statuses} WHERE id IN (SELECT value FROM json_each(?1)) AND ` + base.OpenSQL

// acceptRejectedSQL inserts one row and finds a conflict by the unique index on the coordinates. Rejected messages are
// rare, so each takes a statement.
const acceptRejectedSQL = `
INSERT INTO {rejected} (id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, rejected_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (channel, topic, "partition", record_offset, record_timestamp) DO NOTHING`

func (s *Store) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	return base.AcceptRetrying(ctx, s.Transaction, s, batch, nil)
}

func (s *Store) InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, _ []base.StatusRow,
	_ string, now time.Time,
) (inserted []base.StoredNumber, claimedAt time.Time, err error) {
	number, err := s.take(ctx, pool, takeNumbersSQL, len(messages))
	if err != nil {
		return nil, time.Time{}, err
	}
	first, received := number+1, store.SQLiteTime(now)
	inserted = make([]base.StoredNumber, 0, len(messages))
	for left := messages; len(left) > 0; {
		size := chunks[slices.IndexFunc(chunks, func(size int) bool { return size <= len(left) })]
		args := make([]any, 0, size*11)
		for _, m := range left[:size] {
			number++
			args = append(args, m.ID, m.Namespace, number, m.TransportName, m.Type, m.Source, base.Filled(m.Content),
				m.ContentType, m.SerializedProperties, orNull(m.OrderingKey), received)
		}
		stored, err := store.Query(ctx, pool, s.Text(acceptTextsSQL[size]), store.Value[int64], args...)
		if err != nil {
			return nil, time.Time{}, err
		}
		for _, number := range stored {
			inserted = append(inserted, base.StoredNumber{Identity: base.IdentityOf(messages[number-first]), Number: number})
		}
		left = left[size:]
	}
	return inserted, time.Time{}, nil
}

// orNull returns NULL for a missing key, so that it differs from an empty one: some drivers store a nil slice as an
// empty blob.
func orNull(key []byte) any {
	if key == nil {
		return nil
	}
	return key
}

// InsertsStatuses returns false: the statuses are inserted later, in one statement for the whole batch.
func (s *Store) InsertsStatuses() bool { return false }

func (s *Store) LockKnown(
	ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, now time.Time,
) ([]base.Known, error) {
	keys, of := make([][2]string, len(messages)), make(map[base.Identity]*store.NewMessage, len(messages))
	for i, message := range messages {
		keys[i], of[base.IdentityOf(message)] = [2]string{message.ID, message.Namespace}, message
	}
	return store.Query(ctx, pool, s.Text(acceptKnownSQL), func(rows *sql.Rows, k *base.Known) error {
		var received store.Stamp
		var content sql.RawBytes // compared here and not kept
		var sealed sql.NullString
		if err := rows.Scan(&k.ID, &k.Namespace, &k.Number, &k.MessageType, &k.Source, &received, &content,
			&k.MessageBytes, &sealed); err != nil {
			return err
		}
		k.MessageBytes += len(content)
		k.ReceivedAt, k.Now = received.Time, now
		m := of[k.Identity]
		k.ContentDiffers = base.ContentDiffers(m, m.Differs(content), sealed.String)
		return nil
	}, base.JSONList(keys))
}

func (s *Store) InsertStatuses(
	ctx context.Context, pool gorm.ConnPool, statuses []base.StatusRow, worker string, now time.Time,
) (added []string, claimedAt time.Time, err error) {
	before, err := s.take(ctx, pool, takeSequencesSQL, len(statuses))
	if err != nil {
		return nil, time.Time{}, err
	}
	rows := make([][9]any, len(statuses))
	for i, row := range statuses {
		rows[i] = [9]any{row.ID, row.MessageID, row.HandlerKey, nil, nil, row.Number, row.MessageBytes,
			storedTime(row.FirstDue(now)), row.Claim}
		if row.Lane != nil {
			rows[i][3], rows[i][4] = row.Lane.Handler, row.Lane.Key
		}
	}
	statement, args := acceptStatusesSQL, []any{base.JSONList(rows), before, store.SQLiteTime(now)}
	if worker != "" {
		statement, args = acceptClaimedSQL, append(args, worker)
	}
	added, err = store.Query(ctx, pool, s.Text(statement), func(rows *sql.Rows, id *string) error {
		var taken bool
		if err := rows.Scan(id, &taken); err != nil {
			return err
		}
		if taken {
			claimedAt = base.StoredTime(now)
		}
		return nil
	}, args...)
	return added, claimedAt, err
}

// take advances a counter and returns its value before.
func (s *Store) take(ctx context.Context, pool gorm.ConnPool, statement string, count int) (int64, error) {
	for attempt := 0; ; attempt++ {
		before, err := store.Query(ctx, pool, s.Text(statement), store.Value[int64], count)
		if err != nil {
			return 0, err
		}
		if len(before) == 1 {
			return before[0], nil
		}
		if attempt > 0 {
			return 0, errors.New("the counters of numbers and sequences were not stored")
		}
		if _, err := store.Exec(ctx, pool, s.Text(makeCountersSQL)); err != nil {
			return 0, err
		}
	}
}

func (s *Store) InsertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error {
	for _, r := range rejected {
		_, err := store.Exec(ctx, pool, s.Text(acceptRejectedSQL), r.ID, r.Channel, r.Topic, r.Partition, r.Offset,
			store.SQLiteTime(r.Timestamp), orNull(r.Key), orNull(r.Value), r.Headers, r.Reason, store.SQLiteTime(r.RejectedAt))
		if err != nil {
			return err
		}
	}
	return nil
}
