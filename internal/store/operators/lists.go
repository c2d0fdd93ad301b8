package operators

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// Statements of lists read $3 rows of each handler key, or $3 messages, in the order of an index, from a place on;
// listDue reads up to twice as many rows, in two ranges. They return up to $4 of these that match, and the last of the
// $3: what was read after it is read again. The message's columns are read one at a time by the unique index on its
// number, because a join may be planned as a scan of the whole table.
const (
	ofStatus = `s.id, s.handler_key, s.version, CASE WHEN $5 THEN s.last_error END AS last_error,
		(` + stateBits + ` & $7) <> 0 AND ($11 = '' OR s.fingerprint = $11) AND ($12 = '' OR {index of}lower(s.last_error{bytewise}), $12) > 0) AS matches`

	stateBits = `(CASE WHEN s.completed_at IS NOT NULL THEN CASE s.outcome WHEN 'discarded' THEN 16 WHEN 'superseded' THEN 32 ELSE 4 END
		WHEN s.is_poisoned THEN 8 WHEN s.processing_started_at IS NOT NULL THEN 2
		WHEN s.last_error IS NOT NULL AND s.error_count + s.abandoned_count + s.interrupted_count > 0 THEN 65 ELSE 1 END)`

	ofMessage = `($8 = '' OR type = $8) AND received_at >= $9 AND received_at < $10`

	matches = `matches AND ($6 < 2 OR (SELECT ` + ofMessage + ` FROM {messages} WHERE number = message_number))`

	ofKeys = `
WITH keys AS (SELECT value AS handler_key FROM {list}),
scanned AS (
	SELECT a.*, row_number() OVER w AS depth, lead(id) OVER w IS NULL AS ends
	FROM (
		SELECT ` + ofStatus + `, s.message_id, s.message_number, `

	keysFound = `
	) a
	WINDOW w AS (PARTITION BY handler_key ORDER BY at DESC, id DESC)
)
SELECT false AS closes, 0 AS depth, 0 AS statuses, id, handler_key, at, 0 AS number, version, message_id,
	CASE WHEN $6 > 0 THEN (SELECT type FROM {messages} WHERE number = f.message_number) END AS type,
	CASE WHEN $6 > 0 THEN (SELECT received_at FROM {messages} WHERE number = f.message_number) END AS received_at, last_error, place
FROM (
	SELECT scanned.*, row_number() OVER (ORDER BY at DESC, id DESC) AS place FROM scanned
	WHERE ` + matches + `
	ORDER BY at DESC, id DESC LIMIT $4
) f
UNION ALL
SELECT true, depth, 0, id, handler_key, at, 0, version, NULL, NULL, NULL, NULL, 0
FROM scanned WHERE depth = $3 OR depth < $3 AND ends
ORDER BY place`
)

// Statements of counts read the same rows and return how many they have read and how many match.
const (
	countOfKeys = `
WITH keys AS (SELECT value AS handler_key FROM {list})
SELECT count(*), COALESCE(sum(CASE WHEN ` + matches + ` THEN 1 ELSE 0 END), 0)
FROM (
	SELECT ` + ofStatus + `, s.message_number, `

	keysCounted = `
) a LIMIT $4`
)

// listPoisoned and countInPoisoned use the index on poisoned rows.
const (
	listPoisoned    = ofKeys + poisonedRows + keysFound
	countInPoisoned = countOfKeys + poisonedRows + keysCounted

	poisonedRows = `'' AS at
		FROM keys k {each} FROM {statuses}
			WHERE handler_key = k.handler_key AND is_poisoned AND completed_at IS NULL AND id < $2 ORDER BY id DESC LIMIT $3
		{/each}`
)

// listWaiting and countInWaiting use the index on waiting rows.
const (
	listWaiting    = ofKeys + waitingRows + keysFound
	countInWaiting = countOfKeys + waitingRows + keysCounted

	waitingRows = `'' AS at
		FROM keys k {each} FROM {statuses}
			WHERE handler_key = k.handler_key AND is_waiting AND id < $2 ORDER BY id DESC LIMIT $3
		{/each}`
)

// listGroup and countInGroup use the index on failures.
const (
	listGroup    = ofKeys + groupRows + keysFound
	countInGroup = countOfKeys + groupRows + keysCounted

	groupRows = `'' AS at
		FROM keys k {each} FROM {statuses}
			WHERE handler_key = k.handler_key AND fingerprint = $11 AND ` + isGrouped + ` AND id < $2 ORDER BY id DESC LIMIT $3
		{/each}`
)

// listDue and countInDue use the due index, latest due first, in two ranges: rows that are due at the same time as the
// row before, and rows that are due earlier, up to $3 of each. On SQLite a single condition would be a filter and no
// range.
const (
	listDue    = ofKeys + dueRows + keysFound
	countInDue = countOfKeys + dueRows + keysCounted

	dueRows = `{due as stored} AS at
		FROM keys k {each} FROM (
			SELECT * FROM (
				SELECT * FROM {statuses} WHERE handler_key = k.handler_key AND ` + isOpen + ` AND ` + Due + ` = $13 AND id < $2
				ORDER BY id DESC LIMIT $3
			) a
			UNION ALL
			SELECT * FROM (
				SELECT * FROM {statuses} WHERE handler_key = k.handler_key AND ` + isOpen + ` AND ` + Due + ` < $13
				ORDER BY ` + Due + ` DESC, id DESC LIMIT $3
			) b
		) c {/each}`
)

const (
	isOpen = `completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting`

	// Due is when a status is due, as the due index has it.
	Due = `COALESCE(next_attempt_at, created_at)`
)

// Lists by message find the statuses by their primary key: up to $14 of each message. The message at the place is read
// again, because not all of its statuses may have been returned.
const (
	ofMessages = `
WITH chosen AS (
	SELECT number, id, type, received_at, {received as stored} AS at FROM {messages}
	WHERE (received_at, number) <= ($13, $2) AND received_at >= $9`

	messagesFound = `
	ORDER BY received_at DESC, number DESC LIMIT $3
), scanned AS (
	SELECT m.number, m.id AS message_id, m.type, m.received_at, m.at, ` + ofStatus + `
	FROM (SELECT * FROM chosen WHERE ` + ofMessage + `) m {each} FROM {statuses}
		WHERE message_number = m.number AND (m.number <> $2 OR handler_key > $6) ORDER BY handler_key LIMIT $14
	{/each}
)
SELECT false AS closes, 0 AS depth, 0 AS statuses, id, handler_key, at, number, version, message_id, type, received_at, last_error, place
FROM (
	SELECT scanned.*, row_number() OVER (ORDER BY received_at DESC, number DESC, handler_key) AS place FROM scanned
	WHERE matches AND ($1 = '[]' OR handler_key IN (SELECT value FROM {list}))
	ORDER BY received_at DESC, number DESC, handler_key LIMIT $4
) f
UNION ALL
SELECT true, (SELECT count(*) FROM chosen), (SELECT count(*) FROM scanned), NULL, '', at, number, 0, NULL, NULL, NULL, NULL, 0
FROM (SELECT at, number FROM chosen ORDER BY received_at, number LIMIT 1) l
ORDER BY place`
)

// listReceived uses messages_received_at, newest first.
const listReceived = ofMessages + messagesFound

// listOfMessage uses the messages' primary key. {of known ID} finds them where that is another table's.
const listOfMessage = ofMessages + ` AND id = $15 AND ($16 = '' OR namespace = $16){of known ID}` + messagesFound

var listOf = map[store.Stage]string{store.StagePoisoned: listPoisoned, store.StageWaiting: listWaiting,
	store.StageGroup: listGroup, store.StageDue: listDue, store.StageReceived: listReceived,
	store.StageMessage: listOfMessage}

var countIn = map[store.Stage]string{store.StagePoisoned: countInPoisoned, store.StageWaiting: countInWaiting,
	store.StageGroup: countInGroup, store.StageDue: countInDue}

func (q Queries) ScanStatuses(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan) (
	[]store.StatusHit, error,
) {
	args, err := q.scanArguments(scan)
	if err != nil {
		return nil, err
	}
	return query(ctx, q, pool, listOf[scan.Stage], scanHit, args...)
}

func (q Queries) CountStatuses(ctx context.Context, pool gorm.ConnPool, scan store.StatusScan) (
	looked, matching int, err error,
) {
	args, err := q.scanArguments(scan)
	if err != nil {
		return 0, 0, err
	}
	_, err = query(ctx, q, pool, countIn[scan.Stage], func(rows *sql.Rows, _ *struct{}) error {
		return rows.Scan(&looked, &matching)
	}, args...)
	return looked, matching, err
}

// messageUse returns how a statement reads the messages: not at all, to show the found statuses, or to decide which are
// found.
func messageUse(scan store.StatusScan) int {
	switch {
	case scan.ComparesMessage:
		return 2
	case scan.ReadsMessage:
		return 1
	}
	return 0
}

func (q Queries) scanArguments(scan store.StatusScan) ([]any, error) {
	args := []any{base.JSONList(scan.HandlerKeys), scan.After.ID, scan.Depth, scan.Limit, scan.ReadsErrors,
		messageUse(scan), scan.States, scan.Type, q.form.Time(scan.From), q.form.Time(scan.To), scan.Fingerprint,
		scan.ErrorText}
	if scan.Stage.Keyed() && scan.Stage != store.StageDue {
		return args, nil
	}
	at, err := q.listTime(scan.After.At)
	if err != nil {
		return nil, err
	}
	if args = append(args, at); scan.Stage == store.StageDue {
		return args, nil
	}
	args[1], args[5] = scan.After.Number, scan.After.Key
	args = append(args, scan.PerMessage)
	if scan.Stage == store.StageMessage {
		args = append(args, scan.MessageID, scan.Namespace)
	}
	return args, nil
}

func scanHit(rows *sql.Rows, h *store.StatusHit) error {
	var id, messageID, messageType, lastError sql.NullString
	var received store.Stamp
	var at listed
	var place int64
	err := rows.Scan(&h.Closes, &h.Depth, &h.Statuses, &id, &h.HandlerKey, &at, &h.Place.Number, &h.Version, &messageID,
		&messageType, &received, &lastError, &place)
	h.ID, h.MessageID, h.Type, h.LastError = id.String, messageID.String, messageType.String, lastError.String
	h.ReceivedAt = received.Time
	if h.Place.At = string(at); h.Place.Number != 0 {
		h.Place.Key = h.HandlerKey
	} else {
		h.Place.ID = id.String
	}
	return err
}

// keysOf returns the statement that finds the handler keys of the rows that an index holds, with one step per key (a
// loose index scan), however many rows each key has.
func keysOf(indexed string) string {
	return `
WITH RECURSIVE keys(handler_key, number) AS (
	SELECT (SELECT handler_key FROM {statuses} WHERE ` + indexed + ` ORDER BY handler_key LIMIT 1), 1
	UNION ALL
	SELECT (SELECT s.handler_key FROM {statuses} s WHERE ` + indexed + ` AND s.handler_key > k.handler_key
		ORDER BY s.handler_key LIMIT 1), k.number + 1
	FROM keys k WHERE k.handler_key IS NOT NULL AND k.number < $1
)
SELECT handler_key FROM keys WHERE handler_key IS NOT NULL`
}

// These use the index on poisoned rows, the due index, the one on waiting rows and the one on failures.
var (
	poisonedKeys = keysOf(`is_poisoned AND completed_at IS NULL`)
	dueKeys      = keysOf(isOpen)
	waitingKeys  = keysOf(`is_waiting`)
	failingKeys  = keysOf(isGrouped)
)

var keysIn = map[store.Stage]string{store.StagePoisoned: poisonedKeys, store.StageDue: dueKeys,
	store.StageWaiting: waitingKeys, store.StageGroup: failingKeys}

func (q Queries) KeysIn(ctx context.Context, pool gorm.ConnPool, stage store.Stage, limit int) ([]string, error) {
	return query(ctx, q, pool, keysIn[stage], store.Value[string], limit)
}

// rowColumns are the columns that scanColumns scans. The message's columns are read one at a time by the unique index
// on its number, because a join may be planned as a scan of the whole table.
const rowColumns = `s.id, s.message_id, s.handler_key, s.version, s.error_count, s.abandoned_count, s.interrupted_count, s.requeued_count, s.last_error, s.fingerprint,
	s.created_at, s.processing_started_at, CAST(s.worker_id AS text), s.next_attempt_at, s.is_poisoned, s.completed_at, s.outcome, s.is_waiting,
	s.lane_handler, s.lane_key, s.poisoned_at,
	(SELECT namespace FROM {messages} WHERE number = s.message_number),
	(SELECT type FROM {messages} WHERE number = s.message_number),
	(SELECT source FROM {messages} WHERE number = s.message_number),
	(SELECT received_at FROM {messages} WHERE number = s.message_number)`

// openRows uses the index on open statuses, rowsOfMessages the statuses' primary key.
const (
	openRows = `
SELECT ` + rowColumns + ` FROM {statuses} s WHERE s.id {= any ID} AND ` + base.OpenSQL + ` LIMIT $2`

	rowsOfMessages = `
SELECT ` + rowColumns + ` FROM {statuses} s WHERE s.message_number {= any} AND CAST(s.id AS text) {= any text} LIMIT $2`
)

// rowsOfMessage uses the statuses' primary key.
const rowsOfMessage = `
SELECT s.attempts, ` + rowColumns + ` FROM {statuses} s WHERE s.message_number = $1 ORDER BY s.handler_key LIMIT $2`

func (q Queries) OpenStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) ([]store.StatusRow, error) {
	return query(ctx, q, pool, openRows, scanStatus, base.JSONList(ids), len(ids))
}

func (q Queries) StatusesAmong(ctx context.Context, pool gorm.ConnPool, ids []string, messageNumbers []int64) (
	[]store.StatusRow, error,
) {
	return query(ctx, q, pool, rowsOfMessages, scanStatus, base.JSONList(messageNumbers), len(ids), base.JSONList(ids))
}

func (q Queries) StatusesOf(ctx context.Context, pool gorm.ConnPool, messageNumber int64, limit int) (
	[]store.StatusRow, error,
) {
	return query(ctx, q, pool, rowsOfMessage, func(rows *sql.Rows, r *store.StatusRow) error {
		return scanColumns(rows, r, &r.Attempts)
	}, messageNumber, limit)
}

func scanStatus(rows *sql.Rows, r *store.StatusRow) error { return scanColumns(rows, r) }

// scanColumns scans rowColumns after others.
func scanColumns(rows *sql.Rows, r *store.StatusRow, others ...any) error {
	var namespace, messageType, source sql.NullString
	var created, processing, next, completed, received, poisoned store.Stamp
	err := rows.Scan(append(others, &r.ID, &r.MessageID, &r.HandlerKey, &r.Version, &r.ErrorCount, &r.AbandonedCount,
		&r.InterruptedCount, &r.RequeuedCount, &r.LastError, &r.Fingerprint, &created, &processing, &r.WorkerID, &next,
		&r.IsPoisoned, &completed, &r.Outcome, &r.IsWaiting, &r.LaneHandler, &r.LaneKey, &poisoned, &namespace, &messageType,
		&source, &received)...)
	r.CreatedAt, r.ProcessingStartedAt, r.NextAttemptAt = created.Time, processing.Pointer(), next.Pointer()
	r.CompletedAt, r.PoisonedAt = completed.Pointer(), poisoned.Pointer()
	r.Namespace, r.Type, r.Source, r.ReceivedAt = namespace.String, messageType.String, source.String, received.Time
	r.Lane = laneOf(r.LaneHandler, r.LaneKey)
	return err
}

func laneOf(handler, key *int64) *store.Lane {
	if handler == nil || key == nil {
		return nil
	}
	return &store.Lane{Handler: *handler, Key: *key}
}

// These use the index on lanes and return the statuses of one lane that are poisoned or not ($3), in the order of
// acceptance.
const (
	laneAhead = `
SELECT count(*) FROM (
	SELECT id FROM {statuses open in a lane} AND is_poisoned = $3 AND (sequence, id) < ($4, $5)
	ORDER BY sequence, id LIMIT $6
) a`

	laneHead = `
SELECT id, message_id, COALESCE((SELECT namespace FROM {messages} WHERE number = message_number), ''), sequence, is_poisoned, processing_started_at IS NOT NULL
FROM {statuses open in a lane} AND is_poisoned = $3
ORDER BY sequence, id LIMIT 1`
)

// sequenceOf uses the index on open statuses.
const sequenceOf = `SELECT sequence FROM {statuses} WHERE id = $1 AND ` + base.OpenSQL

func (q Queries) LaneAhead(ctx context.Context, pool gorm.ConnPool, lane store.Lane, poisoned bool,
	before store.LanePlace, limit int) (int64, error) {
	return q.number(ctx, pool, laneAhead, lane.Handler, lane.Key, poisoned, before.Sequence, before.StatusID, limit)
}

func (q Queries) LaneHead(ctx context.Context, pool gorm.ConnPool, lane store.Lane, poisoned bool) (
	*store.LaneHead, error,
) {
	return one(ctx, q, pool, laneHead, func(rows *sql.Rows, h *store.LaneHead) error {
		return rows.Scan(&h.StatusID, &h.MessageID, &h.Namespace, &h.Sequence, &h.Poisoned, &h.Processing)
	}, lane.Handler, lane.Key, poisoned)
}

func (q Queries) SequenceOf(ctx context.Context, pool gorm.ConnPool, statusID string) (*int64, error) {
	return one(ctx, q, pool, sequenceOf, store.Value[int64], statusID)
}
