package ops

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// place is where a walk is: the last row it has looked at.
type place struct {
	// Stage is which part of the list, see stagesOf.
	Stage int `json:"s,omitempty"`
	// At and ID: the time by which the stage goes, as it is stored, and the row.
	At string `json:"t,omitempty"`
	ID string `json:"i,omitempty"`
	// Number and Key: of a walk over messages, the message and its last status
	// looked at; Done if that was the last of all.
	Number int64  `json:"n,omitempty"`
	Key    string `json:"k,omitempty"`
	Done   bool   `json:"d,omitempty"`
}

// Behind every row, which is where walks from the newest begin.
const (
	lastTime = "9999-12-31 23:59:59.999999+00:00"
	lastID   = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// stage is one part of a list: an index that is walked.
type stage string

const (
	byPoisoned stage = "poisoned" // by ID
	byDue      stage = "due"      // by due time: pending, processing, failing
	byWaiting  stage = "waiting"  // by ID: pending in lanes, behind others
	byMessages stage = "messages" // by received_at: any state
	byMessage  stage = "message"  // one message's
)

// source gives the rows of a stage one after the other.
type source interface {
	next(ctx context.Context) (g glimpse, ok bool, err error)
}

// glimpse is as much of a status as tells whether it matches: of the thousands
// that a search looks at it shows a page.
type glimpse struct {
	place     place
	id        string
	number    int64 // of its message
	key       string
	version   int64
	state     State
	failing   bool
	createdAt time.Time
	lastError string // redacted; only if wanted.texts
	// Of its message; only if wanted.message.
	messageID  string
	typ        string
	receivedAt time.Time
	// empty: a message without statuses, or none that could match.
	empty bool
}

// failed tells whether it belongs to a failure group.
func (g *glimpse) failed() bool { return g.state == StatePoisoned || g.failing }

// wanted is what glimpses have beside what all have.
type wanted struct{ texts, message bool }

// glimpses have these columns. Of the message one column at a time, each by the
// unique index on its number: a join may be planned as a walk over all.
const (
	glimpseColumns = `s.id, s.message_number, s.version,
	CASE WHEN s.completed_at IS NOT NULL THEN CASE s.outcome WHEN 'discarded' THEN 'discarded' WHEN 'superseded' THEN 'superseded' ELSE 'completed' END
		WHEN s.is_poisoned THEN 'poisoned' WHEN s.processing_started_at IS NOT NULL THEN 'processing' ELSE 'pending' END,
	s.last_error IS NOT NULL AND s.error_count + s.abandoned_count > 0, s.created_at`

	// If the texts ($4), and what is the message's ($5), are wanted.
	wantedColumns = `CASE WHEN $4 THEN s.last_error END, CASE WHEN $5 THEN s.message_id END,
	CASE WHEN $5 THEN (SELECT type FROM {messages} WHERE number = s.message_number) END,
	CASE WHEN $5 THEN (SELECT received_at FROM {messages} WHERE number = s.message_number) END`
)

// By the index on poisoned rows, newest first.
const walkPoisoned = `
SELECT ` + glimpseColumns + `, ` + wantedColumns + `, NULL
FROM (
	SELECT * FROM {statuses} WHERE handler_key = $1 AND is_poisoned AND completed_at IS NULL AND id < $2 ORDER BY id DESC LIMIT $3
) s`

// By the index on waiting rows, newest first.
const walkWaiting = `
SELECT ` + glimpseColumns + `, ` + wantedColumns + `, NULL
FROM (
	SELECT * FROM {statuses} WHERE handler_key = $1 AND is_waiting AND id < $2 ORDER BY id DESC LIMIT $3
) s`

// By the due index, latest due first, in two ranges: what is due at the same
// time as the row before, and what is due earlier. Said as one condition, it
// would be a filter on SQLite.
const walkDue = `
SELECT ` + glimpseColumns + `, ` + wantedColumns + `, {due as stored}
FROM (
	SELECT * FROM (
		SELECT * FROM {statuses}
		WHERE handler_key = $1 AND ` + isOpen + ` AND ` + due + ` = $6 AND id < $2
		ORDER BY id DESC LIMIT $3
	) a
	UNION ALL
	SELECT * FROM (
		SELECT * FROM {statuses}
		WHERE handler_key = $1 AND ` + isOpen + ` AND ` + due + ` < $6
		ORDER BY ` + due + ` DESC, id DESC LIMIT $3
	) b
) s`

const (
	isOpen = `completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting`
	due    = `COALESCE(next_attempt_at, created_at)`
)

// scanGlimpse scans glimpseColumns, wantedColumns and the place's time as it is
// stored: what users wrote in a zone of theirs stands in SQLite's indexes by
// its text, which no time tells.
func (o *Ops) scanGlimpse(rows *sql.Rows, g *glimpse) error {
	var state string
	var lastError, messageID, messageType sql.NullString
	var created, received store.Stamp
	var at stored
	err := rows.Scan(&g.id, &g.number, &g.version, &state, &g.failing, &created, &lastError, &messageID, &messageType,
		&received, &at)
	g.state, g.createdAt, g.lastError = State(state), created.Time, lastError.String
	g.messageID, g.typ, g.receivedAt = messageID.String, messageType.String, received.Time
	g.failing = g.failing && g.state == StatePending
	g.place = place{At: string(at), ID: g.id}
	return err
}

// keyed walks a stage that has an index led by the handler key: one key's rows
// after the other's, merged.
type keyed struct {
	o         *Ops
	want      wanted
	statement string
	keys      []*keyRows
}

// keyRows is what is read ahead of one key.
type keyRows struct {
	key   string
	chunk int // of the next read
	after place
	rows  []glimpse
	end   bool
	// buffer is what rows are part of.
	buffer []glimpse
}

func (o *Ops) keyed(st stage, keys []string, after *place, chunk int, want wanted) *keyed {
	from := place{At: lastTime, ID: lastID}
	if after != nil {
		from = *after
	}
	k := &keyed{o: o, want: want, statement: map[stage]string{byPoisoned: walkPoisoned, byDue: walkDue,
		byWaiting: walkWaiting}[st]}
	for _, key := range keys {
		k.keys = append(k.keys, &keyRows{key: key, chunk: chunk, after: from})
	}
	return k
}

func (k *keyed) next(ctx context.Context) (glimpse, bool, error) {
	var first *keyRows
	for _, each := range k.keys {
		if err := k.fill(ctx, each); err != nil {
			return glimpse{}, false, err
		}
		if len(each.rows) > 0 && (first == nil || newer(each.rows[0], first.rows[0]) < 0) {
			first = each
		}
	}
	if first == nil {
		return glimpse{}, false, nil
	}
	g := first.rows[0]
	first.rows = first.rows[1:]
	return g, true, nil
}

// newer sorts the rows of a stage as it is walked.
func newer(a, b glimpse) int {
	return cmp.Or(cmp.Compare(b.place.At, a.place.At), cmp.Compare(b.place.ID, a.place.ID))
}

func (k *keyed) fill(ctx context.Context, each *keyRows) error {
	if len(each.rows) > 0 || each.end {
		return nil
	}
	args := []any{each.key, each.after.ID, each.chunk, k.want.texts, k.want.message}
	if k.statement == walkDue {
		at, err := k.o.argument(each.after.At)
		if err != nil {
			return badInput("cursor", "it is not one of this list")
		}
		args = append(args, at)
	}
	rows := each.buffer[:0] // all of which have been given
	_, err := look(ctx, k.o, k.statement, func(found *sql.Rows, _ *struct{}) error {
		g := glimpse{key: each.key}
		err := k.o.scanGlimpse(found, &g)
		of := redact.Value{MessageID: g.messageID, Type: g.typ, HandlerKey: g.key}
		g.lastError = k.o.redactor.Error(of, g.lastError)
		rows = append(rows, g)
		return err
	}, args...)
	if err != nil {
		return err
	}
	each.buffer = rows
	slices.SortFunc(rows, newer) // of the two ranges
	if len(rows) > each.chunk {
		rows = rows[:each.chunk]
	}
	each.rows, each.end = rows, len(rows) < each.chunk
	if len(rows) > 0 {
		each.after = rows[len(rows)-1].place
	}
	each.chunk = min(2*each.chunk, mostAtOnce)
	return nil
}

// leastAtOnce and mostAtOnce are how many rows one statement of a walk reads.
const leastAtOnce, mostAtOnce = 10, 1000
