package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// acceptNewSQL inserts the new messages, with their statuses, in one statement. That is the usual case.
// acceptClaimedSQL does the same for local dispatch: it claims statuses as it inserts them.
var acceptNewSQL, acceptClaimedSQL = acceptSQL(false), acceptSQL(true)

// acceptSQL returns one of the two statements.
//
// messages_pkey decides which messages are new, with partitions message_ids_pkey, and "ids" inserts there first. Either
// is the only index that is in the order of the producers' IDs: statuses find their message by its number. Their
// sequence follows their position, because PostgreSQL evaluates an identity after the ORDER BY.
//
// The contents come as one value that the statement cuts. In an array, each of them would be copied four more times.
// They are the last parameter: after them, the driver's buffer would have grown by their size, and would be copied for
// each further parameter. A value that all messages have in common is sent once: unnest fills the shorter array with
// NULL.
//
// What is received and created has the time of the database's clock ({latest}), which also judges its age and whether
// it is due: the clock of the accepting process may be wrong. With a test's clock {latest} is NULL. "moment" reads that
// clock once, so that all messages, statuses and the result have the same time.
//
// A claim reads the worker's row by workers_pkey: see claimsLock.
//
// Only one row of the result has numbers: the numbers of all new messages, in the order of the parameters, which is
// UTF-8's. It also has how many they are and, if statuses were claimed, when they were created. Usually all messages
// are new, and there are no more rows. Otherwise each new one has a row.
func acceptSQL(claims bool) string {
	worker, columns, values, join, claimedAt, contents := "", "", "", "", "NULL::timestamptz", "$19"
	if claims {
		worker = `worker AS MATERIALIZED (
	SELECT id FROM {workers} WHERE id = $19::text::uuid AND released_at IS NULL AND stopped_at IS NULL {claims lock}
), `
		columns = `, processing_started_at, worker_id`
		values = `, CASE WHEN worker.id IS NOT NULL THEN $8::timestamptz END, worker.id`
		join = `LEFT JOIN worker ON ($20::boolean[])[s.position]`
		claimedAt = `CASE WHEN EXISTS (SELECT FROM worker) THEN (SELECT now FROM moment) END`
		contents = "$21"
	}
	return `
WITH moment AS MATERIALIZED (
	SELECT COALESCE({latest}, $8::timestamptz) AS now
), ` + worker + `{ids first}fresh AS (
	INSERT INTO {messages} ({number,}id, namespace, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at)
	SELECT {ids.number,}m.id, COALESCE(m.namespace, ($16::text[])[1]),
		COALESCE(m.transport_name, ($2::text[])[1]), COALESCE(m.type, ($3::text[])[1]), COALESCE(m.source, ($4::text[])[1]),
		substring(` + contents + `::bytea FROM m.place FOR m.length), COALESCE(m.content_type, ($5::text[])[1]), COALESCE(m.properties, ($6::text[])[1]),
		m.ordering_key, (SELECT now FROM moment)
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $14::integer[], $15::integer[], $5::text[], $6::text[], $7::bytea[], $16::text[])
		AS m(id, transport_name, type, source, place, length, content_type, properties, ordering_key, namespace)
	{if new}
	RETURNING id, namespace, number, octet_length(content) + octet_length(serialized_properties) AS bytes
), added AS (
	INSERT INTO {statuses} (id, message_number, message_bytes, message_id, handler_key, created_at, lane_handler, lane_key, next_attempt_at` + columns + `)
	SELECT s.id, fresh.number, fresh.bytes, s.message_id, COALESCE(s.handler_key, ($11::text[])[1]), (SELECT now FROM moment), s.lane_handler, s.lane_key,
		CASE WHEN s.not_before > (SELECT now FROM moment) THEN s.not_before END` + values + `
	FROM unnest($9::uuid[], $10::text[], $11::text[], $12::bigint[], $13::bigint[], $17::text[], $18::timestamptz[])
		WITH ORDINALITY AS s(id, message_id, handler_key, lane_handler, lane_key, namespace, not_before, position)
	JOIN fresh ON fresh.id = s.message_id AND fresh.namespace = COALESCE(s.namespace, ($17::text[])[1])
	` + join + `
	ORDER BY s.position
)
SELECT '' AS id, '' AS namespace, count(*) AS number,
	COALESCE(array_agg(number ORDER BY convert_to(id, 'UTF8'), convert_to(namespace, 'UTF8'))::text, '{}'), ` + claimedAt + `
FROM fresh
UNION ALL
SELECT id, namespace, number, NULL, NULL FROM fresh WHERE (SELECT count(*) FROM fresh) < cardinality($1::text[])`
}

// acceptLockSQL locks known messages by messages_pkey, with partitions by message_ids_pkey and their numbers. It does
// so in the order of the array, which is the order of all accepts: two accepts of the same messages wait for each other
// instead of deadlocking. NO KEY UPDATE keeps out cleanup (UPDATE) and other accepts, but not the foreign key checks of
// statuses. For the sub-selects, see completionsSQL. The database's clock, read beside each message, says how old it
// is.
const acceptLockSQL = `
SELECT m.id, m.namespace, m.number, m.type, m.source, m.received_at, COALESCE({latest}, $4::timestamptz), sha256(m.content) <> k.hash,
	octet_length(m.content) + octet_length(m.serialized_properties), ` + base.SealedTerm + `
FROM unnest((SELECT $1::text[]), (SELECT $2::bytea[]), (SELECT $3::text[])) WITH ORDINALITY AS k(id, hash, namespace, position)
JOIN {known message}
ORDER BY k.position
FOR NO KEY UPDATE OF {id and message}`

// acceptKeysSQL reads the statuses of known messages by handler_statuses_pkey. It is a separate statement after the
// lock, so that its snapshot shows the rows of the accept that held the lock before. LATERAL, kept by OFFSET, forces
// the index: with a list of numbers the planner might scan a table that has no statistics. For the sub-selects, see
// completionsSQL.
const acceptKeysSQL = `
SELECT s.message_number, s.handler_key FROM unnest((SELECT $1::bigint[])) AS k(number)
CROSS JOIN LATERAL (
	SELECT message_number, handler_key FROM {statuses} WHERE message_number = k.number AND handler_key = ANY ((SELECT $2::text[])::text[]) OFFSET 0
) s`

// acceptStatusesSQL inserts the statuses that are missing. It finds conflicts by handler_statuses_pkey.
var acceptStatusesSQL = `
WITH added AS (
	INSERT INTO {statuses} (id, message_number, message_bytes, message_id, handler_key, created_at, lane_handler, lane_key, next_attempt_at)
	SELECT s.id, s.message_number, s.message_bytes, s.message_id, s.handler_key, COALESCE({latest}, $4::timestamptz), s.lane_handler, s.lane_key,
		CASE WHEN s.not_before > COALESCE({latest}, $4::timestamptz) THEN s.not_before END
	FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::integer[], $9::timestamptz[])
		WITH ORDINALITY AS s(id, message_id, handler_key, lane_handler, lane_key, message_number, message_bytes, not_before, position)
	ORDER BY s.position
	ON CONFLICT (message_number, handler_key) DO NOTHING
	RETURNING id
)
SELECT id FROM added`

// acceptDeleteSQL deletes new statuses by handler_statuses_open.
const acceptDeleteSQL = `DELETE FROM {statuses} WHERE id = ANY ($1::text[]::uuid[]) AND ` + base.OpenSQL

// acceptRejectedSQL stores rejected messages. It finds conflicts by the unique index on the coordinates. Existing rows
// are locked, so that a batch in which nothing is new also waits for the synchronous standby (see confirmed). No two of
// the rows may have the same coordinates.
const acceptRejectedSQL = `
INSERT INTO {rejected} (id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, rejected_at)
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, COALESCE({latest}, rejected_at)
FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::integer[], $5::bigint[], $6::timestamptz[],
	$7::bytea[], $8::bytea[], $9::text[], $10::text[], $11::timestamptz[])
	AS r(id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, rejected_at)
ON CONFLICT (channel, topic, "partition", record_offset, record_timestamp) DO UPDATE SET reason = EXCLUDED.reason WHERE false`

func (p *Store) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	return base.AcceptRetrying(ctx, p.acceptTransaction(batch.Messages), p, batch, nil)
}

func (p *Store) AcceptTx(
	ctx context.Context, tx *gorm.DB, batch store.AcceptBatch,
) (results []store.Accepted, err error) {
	err = p.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		results, err = base.Accept(ctx, pool, p, batch)
		return err
	})
	return results, base.Doing("accept", err)
}

func (p *Store) InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage,
	statuses []base.StatusRow, worker string, now time.Time,
) (inserted []base.StoredNumber, claimedAt time.Time, err error) {
	n := len(messages)
	ids, namespaces := make([]string, n), make([]string, n)
	transports, types, sources := make([]string, n), make([]string, n), make([]string, n)
	contentTypes, properties, orderings := make([]string, n), make([]string, n), make([][]byte, n)
	for i, m := range messages {
		ids[i], namespaces[i] = m.ID, m.Namespace
		transports[i], types[i], sources[i] = m.TransportName, m.Type, m.Source
		contentTypes[i], properties[i], orderings[i] = m.ContentType, m.SerializedProperties, m.OrderingKey
	}
	contents, places, lengths, done := inOnePiece(messages)
	defer done()
	rowIDs, messageIDs, keys, laneHandlers, laneKeys := arraysOf(statuses)
	statusIDs, err := uuids(rowIDs)
	if err != nil {
		return nil, time.Time{}, err
	}
	statusNamespaces, claims := make([]string, len(statuses)), make([]bool, len(statuses))
	for i, row := range statuses {
		statusNamespaces[i], claims[i] = row.Namespace, row.Claim
	}
	args := []any{texts(ids), once(transports), once(types), once(sources), once(contentTypes), once(properties),
		orNone(orderings), now.UTC(), statusIDs, texts(messageIDs), once(keys), laneHandlers, laneKeys, places, lengths,
		once(namespaces), once(statusNamespaces), notBefore(statuses)}
	statement := acceptNewSQL
	if worker != "" {
		statement, args = acceptClaimedSQL, append(args, worker, claims)
	}
	rows, err := queryWith(ctx, pool, contents, p.Text(statement), func(r row, into *newRow) error {
		return r.Scan(&into.ID, &into.Namespace, &into.Number, &into.numbers, &into.claimedAt)
	}, args...)
	if err != nil {
		return nil, time.Time{}, err
	}
	inserted = make([]base.StoredNumber, 0, n)
	for _, row := range rows {
		if !row.numbers.Valid {
			inserted = append(inserted, row.StoredNumber)
			continue
		}
		claimedAt = row.claimedAt.Time.UTC()
		if row.Number < int64(n) {
			continue
		}
		for text := range strings.SplitSeq(strings.Trim(row.numbers.String, "{}"), ",") {
			number, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, time.Time{}, fmt.Errorf("read the numbers of new messages: %w", err)
			}
			inserted = append(inserted, base.StoredNumber{Identity: base.IdentityOf(messages[len(inserted)]), Number: number})
		}
	}
	return inserted, claimedAt, nil
}

// newRow is a row of acceptSQL.
type newRow struct {
	base.StoredNumber
	numbers   sql.NullString
	claimedAt sql.NullTime
}

func (p *Store) InsertsStatuses() bool { return true }

func (p *Store) LockKnown(
	ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, now time.Time,
) ([]base.Known, error) {
	ids, namespaces, hashes := make([]string, len(messages)), make([]string, len(messages)), make([][]byte, len(messages))
	of := make(map[base.Identity]*store.NewMessage, len(messages))
	for i, message := range messages {
		ids[i], namespaces[i], hashes[i] = message.ID, message.Namespace, message.ContentSHA256()
		of[base.IdentityOf(message)] = message
	}
	return store.Query(ctx, pool, p.Text(acceptLockSQL), func(rows *sql.Rows, k *base.Known) error {
		var sealed sql.NullString
		err := rows.Scan(&k.ID, &k.Namespace, &k.Number, &k.MessageType, &k.Source, &k.ReceivedAt, &k.Now,
			&k.ContentDiffers, &k.MessageBytes, &sealed)
		k.ContentDiffers = base.ContentDiffers(of[k.Identity], k.ContentDiffers, sealed.String)
		return err
	}, ids, hashes, namespaces, now.UTC())
}

func (p *Store) InsertStatuses(
	ctx context.Context, pool gorm.ConnPool, statuses []base.StatusRow, _ string, now time.Time,
) (added []string, claimedAt time.Time, err error) {
	ids, messageIDs, keys, laneHandlers, laneKeys := arraysOf(statuses)
	numbers, bytes := make([]int64, len(statuses)), make([]int32, len(statuses))
	for i, row := range statuses {
		numbers[i], bytes[i] = row.Number, int32(row.MessageBytes)
	}
	added, err = store.Query(ctx, pool, p.Text(acceptStatusesSQL), store.Value[string], ids, messageIDs, keys, now.UTC(),
		laneHandlers, laneKeys, numbers, bytes, notBefore(statuses))
	return added, time.Time{}, err
}

func (p *Store) InsertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error {
	n := len(rejected)
	ids, channels, topics, headers, reasons := make([]string, n), make([]string, n), make([]string, n), make([]string,
		n), make([]string, n)
	partitions, offsets := make([]int32, n), make([]int64, n)
	timestamps, times := make([]time.Time, n), make([]time.Time, n)
	keys, values := make([][]byte, n), make([][]byte, n)
	for i, r := range rejected {
		ids[i], channels[i], topics[i], headers[i], reasons[i] = r.ID, r.Channel, r.Topic, r.Headers, r.Reason
		partitions[i], offsets[i] = r.Partition, r.Offset
		timestamps[i], times[i] = r.Timestamp.UTC(), r.RejectedAt.UTC()
		keys[i], values[i] = r.Key, r.Value
	}
	_, err := store.Exec(ctx, pool, p.Text(acceptRejectedSQL),
		ids, channels, topics, partitions, offsets, timestamps, keys, values, headers, reasons, times)
	return err
}

// pieces holds the buffers in which contents are joined and parameters are encoded. They are the largest memory that an
// accept needs, and drivers copy them before they return.
var pieces = sync.Pool{New: func() any { return &[]byte{} }} // never nil, which would be NULL

// maxPiece bounds the size of a buffer that is kept in pieces.
const maxPiece = 8 << 20

// inOnePiece joins the contents, for use until done is called. places count from 1, as in SQL.
func inOnePiece(messages []*store.NewMessage) (contents []byte, places, lengths []int32, done func()) {
	total := 0
	for _, m := range messages {
		total += len(m.Content)
	}
	piece := pieces.Get().(*[]byte)
	contents, places, lengths = slices.Grow((*piece)[:0], total), make([]int32, len(messages)), make([]int32,
		len(messages))
	for i, m := range messages {
		places[i], lengths[i] = int32(len(contents)+1), int32(len(m.Content))
		contents = append(contents, m.Content...)
	}
	return contents, places, lengths, func() { keep(piece, contents) }
}

// keep returns a buffer of pieces that has become used.
func keep(piece *[]byte, used []byte) {
	if cap(used) <= maxPiece {
		*piece = used
		pieces.Put(piece)
	}
}

// once reduces values that are all alike to one value.
func once(values []string) []string {
	for _, v := range values {
		if v != values[0] {
			return values
		}
	}
	return values[:min(len(values), 1)]
}

// orNone reduces values that are all NULL to no value.
func orNone(values [][]byte) [][]byte {
	for _, v := range values {
		if v != nil {
			return values
		}
	}
	return [][]byte{}
}

// arraysOf turns rows into one array per column.
func arraysOf(statuses []base.StatusRow) (ids, messageIDs, handlerKeys []string, laneHandlers, laneKeys []*int64) {
	n := len(statuses)
	ids, messageIDs, handlerKeys = make([]string, n), make([]string, n), make([]string, n)
	laneHandlers, laneKeys = []*int64{}, []*int64{} // empty unless a row has a lane
	for i, row := range statuses {
		ids[i], messageIDs[i], handlerKeys[i] = row.ID, row.MessageID, row.HandlerKey
		if row.Lane == nil {
			continue
		}
		if len(laneKeys) == 0 {
			laneHandlers, laneKeys = make([]*int64, n), make([]*int64, n)
		}
		laneHandlers[i], laneKeys[i] = &row.Lane.Handler, &row.Lane.Key
	}
	return ids, messageIDs, handlerKeys, laneHandlers, laneKeys
}

// notBefore returns the rows' times; no value if none has one.
func notBefore(statuses []base.StatusRow) []*time.Time {
	times, some := make([]*time.Time, len(statuses)), false
	for i := range statuses {
		if at := &statuses[i].NotBefore; !at.IsZero() {
			times[i], some = at, true
		}
	}
	if !some {
		return times[:0]
	}
	return times
}
