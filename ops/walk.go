package ops

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
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
	next(ctx context.Context) (r row, ok bool, err error)
}

// By the index on poisoned rows, newest first.
const walkPoisoned = `
SELECT ` + rowColumns + `, ` + messageColumns + `, NULL
FROM (
	SELECT * FROM {statuses} WHERE handler_key = $1 AND is_poisoned AND completed_at IS NULL AND id < $2 ORDER BY id DESC LIMIT $3
) s`

// By the index on waiting rows, newest first.
const walkWaiting = `
SELECT ` + rowColumns + `, ` + messageColumns + `, NULL
FROM (
	SELECT * FROM {statuses} WHERE handler_key = $1 AND is_waiting AND id < $2 ORDER BY id DESC LIMIT $3
) s`

// By the due index, latest due first, in two ranges: what is due at the same
// time as the row before, and what is due earlier. Said as one condition, it
// would be a filter on SQLite.
const walkDue = `
SELECT ` + rowColumns + `, ` + messageColumns + `, {due as stored}
FROM (
	SELECT * FROM (
		SELECT * FROM {statuses}
		WHERE handler_key = $1 AND ` + isOpen + ` AND ` + due + ` = $4 AND id < $2
		ORDER BY id DESC LIMIT $3
	) a
	UNION ALL
	SELECT * FROM (
		SELECT * FROM {statuses}
		WHERE handler_key = $1 AND ` + isOpen + ` AND ` + due + ` < $4
		ORDER BY ` + due + ` DESC, id DESC LIMIT $3
	) b
) s`

const (
	isOpen = `completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting`
	due    = `COALESCE(next_attempt_at, created_at)`
)

// keyed walks a stage that has an index led by the handler key: one key's rows
// after the other's, merged.
type keyed struct {
	o         *Ops
	statement string
	chunk     int
	keys      []*keyRows
}

// keyRows is what is read ahead of one key.
type keyRows struct {
	key   string
	after place
	rows  []row
	end   bool
}

func (o *Ops) keyed(st stage, keys []string, after *place, chunk int) *keyed {
	from := place{At: lastTime, ID: lastID}
	if after != nil {
		from = *after
	}
	k := &keyed{o: o, statement: map[stage]string{byPoisoned: walkPoisoned, byDue: walkDue, byWaiting: walkWaiting}[st], chunk: chunk}
	for _, key := range keys {
		k.keys = append(k.keys, &keyRows{key: key, after: from})
	}
	return k
}

func (k *keyed) next(ctx context.Context) (row, bool, error) {
	var first *keyRows
	for _, each := range k.keys {
		if err := k.fill(ctx, each); err != nil {
			return row{}, false, err
		}
		if len(each.rows) > 0 && (first == nil || newer(each.rows[0], first.rows[0]) < 0) {
			first = each
		}
	}
	if first == nil {
		return row{}, false, nil
	}
	r := first.rows[0]
	first.rows = first.rows[1:]
	return r, true, nil
}

// newer sorts the rows of a stage as it is walked.
func newer(a, b row) int {
	return cmp.Or(cmp.Compare(b.place.At, a.place.At), cmp.Compare(b.place.ID, a.place.ID))
}

func (k *keyed) fill(ctx context.Context, each *keyRows) error {
	if len(each.rows) > 0 || each.end {
		return nil
	}
	args := []any{each.key, each.after.ID, k.chunk}
	if k.statement == walkDue {
		at, err := k.o.argument(each.after.At)
		if err != nil {
			return badInput("cursor", "it is not one of this list")
		}
		args = append(args, at)
	}
	rows, err := look(ctx, k.o, k.statement, func(rows *sql.Rows, r *row) error { return k.o.scanWhole(rows, r) }, args...)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, newer) // of the two ranges
	if len(rows) > k.chunk {
		rows = rows[:k.chunk]
	}
	each.rows, each.end = rows, len(rows) < k.chunk
	if len(rows) > 0 {
		each.after = rows[len(rows)-1].place
	}
	k.chunk = min(2*k.chunk, mostAtOnce)
	return nil
}

// mostAtOnce is how many rows one statement of a walk reads at most.
const mostAtOnce = 1000
