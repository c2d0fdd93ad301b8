package ops

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// place is where a list continues: after the last row that was read.
type place struct {
	// Stage is the part of the list, see filter.stages.
	Stage int `json:"s,omitempty"`
	// At and ID are the time by which the stage is sorted, as it is stored, and the row.
	At string `json:"t,omitempty"`
	ID string `json:"i,omitempty"`
	// Number and Key are, for a list by messages, the message and its last status.
	Number int64  `json:"n,omitempty"`
	Key    string `json:"k,omitempty"`
}

// endOfTime is after every row. Lists that start with the newest row begin there.
var endOfTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

const (
	lastTime = "9999-12-31 23:59:59.999999+00:00"
	lastID   = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// stage is one part of a list: the index by which it is sorted.
type stage string

const (
	byPoisoned stage = "poisoned" // by ID
	byDue      stage = "due"      // by due time: pending, processing, failing
	byWaiting  stage = "waiting"  // by ID: pending in lanes, behind others
	byGroup    stage = "group"    // by ID: a failure group
	byReceived stage = "received" // by received_at: any state
	byMessage  stage = "message"  // one message's
)

// keyed reports whether the handler key comes first in the stage's index.
func (st stage) keyed() bool { return st != byReceived && st != byMessage }

// firstStep is how many rows the first statement of a stage reads for a page: as many as needed if
// every row matches. A message has several statuses, so fewer messages are needed.
func (st stage) firstStep(limit int) int {
	if st.keyed() {
		return limit + 1
	}
	return min(limit+1, 100)
}

// start returns a place before the first row of a stage. Messages have positive numbers.
func (o *Ops) start(f *filter, st stage) place {
	if st.keyed() {
		return place{At: lastTime, ID: lastID}
	}
	_, before := o.roughly(f.From, f.To)
	return place{At: store.SQLiteTime(before)}
}

// hit is the part of a status that lists and actions need to select it.
type hit struct {
	place      place
	id         string
	key        string
	version    int64
	receivedAt time.Time // unless messageUnused
	lastError  string    // redacted; only if the text is judged by it, see Ops.judges
	// closes marks a row that is no hit: the last row read of its handler key, or of all. depth is
	// how many rows were read; of messages, statuses is how many these have.
	closes          bool
	depth, statuses int
}

// Statements of lists read $3 rows of each handler key, or $3 messages, in the order of an index,
// from a place on; listDue reads up to twice as many rows, in two ranges. They return up to $4 of
// these that match, and the last of the $3: what was read after it is read again. The message's
// columns are read one at a time by the unique index on its number, because a join may be planned
// as a scan of the whole table.
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
	CASE WHEN $6 > 0 THEN (SELECT received_at FROM {messages} WHERE number = f.message_number) END AS received_at, last_error, rank
FROM (
	SELECT scanned.*, row_number() OVER (ORDER BY at DESC, id DESC) AS rank FROM scanned
	WHERE ` + matches + `
	ORDER BY at DESC, id DESC LIMIT $4
) f
UNION ALL
SELECT true, depth, 0, id, handler_key, at, 0, version, NULL, NULL, NULL, NULL, 0
FROM scanned WHERE depth = $3 OR depth < $3 AND ends
ORDER BY rank`
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

// listDue and countInDue use the due index, latest due first, in two ranges: what is due at the same
// time as the row before, and what is due earlier, up to $3 rows of each. On SQLite a single
// condition would be a filter and no range.
const (
	listDue    = ofKeys + dueRows + keysFound
	countInDue = countOfKeys + dueRows + keysCounted

	dueRows = `{due as stored} AS at
		FROM keys k {each} FROM (
			SELECT * FROM (
				SELECT * FROM {statuses} WHERE handler_key = k.handler_key AND ` + isOpen + ` AND ` + due + ` = $13 AND id < $2
				ORDER BY id DESC LIMIT $3
			) a
			UNION ALL
			SELECT * FROM (
				SELECT * FROM {statuses} WHERE handler_key = k.handler_key AND ` + isOpen + ` AND ` + due + ` < $13
				ORDER BY ` + due + ` DESC, id DESC LIMIT $3
			) b
		) c {/each}`
)

const (
	isOpen = `completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting`
	due    = `COALESCE(next_attempt_at, created_at)`
)

// Lists by message find the statuses by their primary key: up to $14 of each message. The message at
// the place is read again, because not all of its statuses may have been returned.
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
SELECT false AS closes, 0 AS depth, 0 AS statuses, id, handler_key, at, number, version, message_id, type, received_at, last_error, rank
FROM (
	SELECT scanned.*, row_number() OVER (ORDER BY received_at DESC, number DESC, handler_key) AS rank FROM scanned
	WHERE matches AND ($1 = '[]' OR handler_key IN (SELECT value FROM {list}))
	ORDER BY received_at DESC, number DESC, handler_key LIMIT $4
) f
UNION ALL
SELECT true, (SELECT count(*) FROM chosen), (SELECT count(*) FROM scanned), NULL, '', at, number, 0, NULL, NULL, NULL, NULL, 0
FROM (SELECT at, number FROM chosen ORDER BY received_at, number LIMIT 1) l
ORDER BY rank`
)

// listReceived uses messages_received_at, newest first.
const listReceived = ofMessages + messagesFound

// listOfMessage uses the messages' primary key.
const listOfMessage = ofMessages + ` AND id = $15 AND ($16 = '' OR namespace = $16)` + messagesFound

var listOf = map[stage]string{byPoisoned: listPoisoned, byWaiting: listWaiting, byGroup: listGroup, byDue: listDue,
	byReceived: listReceived, byMessage: listOfMessage}

var countIn = map[stage]string{byPoisoned: countInPoisoned, byWaiting: countInWaiting, byGroup: countInGroup,
	byDue: countInDue}

// scanned is what one statement of a list has found.
type scanned struct {
	rows   []hit
	looked int
	// edge is the place up to which everything has been read; nil if that is the end.
	edge *place
	// keys are the handler keys that may have rows after the edge.
	keys []string
}

// scan runs the statement of a stage. The statements document the parameters.
func (o *Ops) scan(
	ctx context.Context, f *filter, st stage, keys []string, after place, depth, limit int,
) (scanned, error) {
	args, err := o.scanArguments(f, st, keys, after, depth, limit)
	if err != nil {
		return scanned{}, err
	}
	read, err := readMany(ctx, o, listOf[st], o.scanHit, args...)
	if err != nil {
		return scanned{}, err
	}
	if st.keyed() {
		return scannedOfKeys(read, depth), nil
	}
	var s scanned
	for _, h := range read {
		if !h.closes {
			s.rows = append(s.rows, h)
			continue
		}
		s.looked = max(h.depth, h.statuses)
		if h.depth == depth {
			// Continue after the message, with all of its statuses.
			s.edge = &place{At: h.place.At, Number: h.place.Number - 1}
		}
	}
	return s, nil
}

// counts reports whether a statement can count the matching rows of a stage by itself.
func (o *Ops) counts(f *filter, st stage) bool {
	exact := !o.sqlite || f.From.IsZero() && f.To.IsZero() // see roughly
	return st.keyed() && exact && !o.judges(f)
}

// countIn counts the matching rows of a handler key among the first of a stage, up to depth.
func (o *Ops) countIn(
	ctx context.Context, f *filter, st stage, key string, depth int,
) (looked, matching int, err error) {
	args, err := o.scanArguments(f, st, []string{key}, o.start(f, st), depth, 1)
	if err != nil {
		return 0, 0, err
	}
	_, err = readMany(ctx, o, countIn[st], func(rows *sql.Rows, _ *struct{}) error {
		return rows.Scan(&looked, &matching)
	}, args...)
	return looked, matching, err
}

// scannedOfKeys finds the edge of all handler keys: the latest of the places at which a key had
// more rows than were read. What was read after it is read again.
func scannedOfKeys(read []hit, depth int) (s scanned) {
	for _, h := range read {
		if h.closes {
			s.looked += h.depth
			if h.depth == depth && (s.edge == nil || newer(h.place, *s.edge) < 0) {
				s.edge = &h.place
			}
		}
	}
	for _, h := range read {
		behind := s.edge != nil && newer(h.place, *s.edge) > 0
		switch {
		case !h.closes && !behind:
			s.rows = append(s.rows, h)
		case h.closes && (behind || h.depth == depth):
			s.keys = append(s.keys, h.key)
		}
	}
	return s
}

// newer sorts the places of a stage in the order of its list.
func newer(a, b place) int { return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(b.ID, a.ID)) }

func (o *Ops) scanArguments(
	f *filter, st stage, keys []string, after place, depth, limit int,
) ([]any, error) {
	if keys == nil {
		keys = []string{}
	}
	list, err := jsonOf(keys)
	if err != nil {
		return nil, err
	}
	at, err := o.argument(cmp.Or(after.At, lastTime))
	if err != nil {
		return nil, badInput("cursor", "it is not one of this list")
	}
	oldest, before := o.roughly(f.From, f.To)
	args := []any{list, after.ID, depth, limit, o.judges(f), o.messageUse(f), f.states, f.Type, o.stamp(oldest),
		o.stamp(before), f.Fingerprint, o.sqlText(f.text)}
	if st == byDue {
		return append(args, at), nil
	}
	if st.keyed() {
		return args, nil
	}
	args[1], args[5] = after.Number, after.Key
	args = append(args, at, lookLimit)
	if st == byMessage {
		args = append(args, f.MessageID, f.Namespace)
	}
	return args, nil
}

// scanHit scans a row of a list. Its time is read as it is stored: SQLite's indexes sort times that
// users wrote in another time zone by their text.
func (o *Ops) scanHit(rows *sql.Rows, h *hit) error {
	var id, messageID, messageType, lastError sql.NullString
	var received store.Stamp
	var at stored
	var rank int64
	err := rows.Scan(&h.closes, &h.depth, &h.statuses, &id, &h.key, &at, &h.place.Number, &h.version, &messageID,
		&messageType, &received, &lastError, &rank)
	h.id, h.place.ID, h.place.At, h.receivedAt = id.String, id.String, string(at), received.Time
	if h.place.Number != 0 {
		h.place.ID, h.place.Key = "", h.key
	}
	of := redact.Value{MessageID: messageID.String, Type: messageType.String, HandlerKey: h.key}
	h.lastError = o.redactor.Error(of, lastError.String)
	return err
}
