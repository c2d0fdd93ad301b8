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

// By messages_received_at, newest first, from the place on: the row there is
// given once more, its statuses may not all have been looked at.
const walkMessages = `
SELECT number, CASE WHEN $5 THEN id ELSE '' END, '', type, received_at, {received as stored} FROM {messages}
WHERE (received_at, number) <= ($1, $2) AND received_at >= $3
ORDER BY received_at DESC, number DESC LIMIT $4`

// By the messages' primary key.
const oneMessage = `
SELECT number, id, namespace, type, received_at, {received as stored} FROM {messages}
WHERE id = $1 AND (CAST($2 AS text) = '' OR namespace = $2) LIMIT 1000`

// message is a message without its content.
type message struct {
	number             int64
	id, namespace, typ string
	receivedAt         time.Time
	at                 stored
}

func scanMessage(rows *sql.Rows, m *message) error {
	var received store.Stamp
	err := rows.Scan(&m.number, &m.id, &m.namespace, &m.typ, &received, &m.at)
	m.receivedAt = received.Time
	return err
}

// byReceived walks messages and the statuses of each by handler key.
type byReceived struct {
	o      *Ops
	filter *filter
	oldest any // From as an argument
	chunk  int
	after  place
	rows   []glimpse
	end    bool
}

func (o *Ops) byReceived(f *filter, after *place, chunk int) *byReceived {
	w := &byReceived{o: o, filter: f, chunk: chunk, after: place{At: lastTime, Number: 1 << 62}}
	oldest, latest := roughly(f.From, f.To)
	w.oldest = o.stamp(oldest)
	if !latest.IsZero() {
		w.after.At = store.SQLiteTime(latest)
	}
	if after != nil {
		w.after = *after
	}
	return w
}

func (w *byReceived) next(ctx context.Context) (glimpse, bool, error) {
	for len(w.rows) == 0 {
		if w.end {
			return glimpse{}, false, nil
		}
		if err := w.fill(ctx); err != nil {
			return glimpse{}, false, err
		}
	}
	g := w.rows[0]
	w.rows = w.rows[1:]
	return g, true, nil
}

func (w *byReceived) fill(ctx context.Context) error {
	at, err := w.o.argument(w.after.At)
	if err != nil {
		return badInput("cursor", "it is not one of this list")
	}
	messages, err := look(ctx, w.o, walkMessages, scanMessage, at, w.after.Number, w.oldest, w.chunk+1,
		w.filter.want.message)
	if err != nil {
		return err
	}
	w.end = len(messages) <= w.chunk
	for {
		rows, whole, err := w.o.rowsOf(ctx, w.filter, messages, w.after)
		if err != nil {
			return err
		}
		if whole || len(messages) == 1 {
			w.rows = rows
			break
		}
		messages, w.end = messages[:(len(messages)+1)/2], false
	}
	if len(messages) > 0 {
		last := messages[len(messages)-1]
		w.after = place{At: string(last.at), Number: last.number, Done: true}
	}
	w.chunk = min(2*w.chunk, mostAtOnce)
	return nil
}

// By the unique index on (message_number, handler_key); the texts if they are
// wanted.
const statusesOf = `
SELECT ` + glimpseColumns + `, CASE WHEN $3 THEN s.last_error END, s.handler_key
FROM {statuses} s WHERE s.message_number {= any} ORDER BY s.message_number, s.handler_key LIMIT $2`

// statusesAtOnce bounds what one look at messages' statuses reads.
const statusesAtOnce = LookLimit

// rowsOf are the statuses of messages behind after, in the messages' order and
// by handler key; of a message that does not match, or has no statuses, one empty
// row. whole is false if there are more than are read at once.
func (o *Ops) rowsOf(
	ctx context.Context, f *filter, messages []message, after place,
) (rows []glimpse, whole bool, err error) {
	var numbers []int64
	for _, m := range messages {
		if f.takesMessage(m.typ, m.receivedAt) {
			numbers = append(numbers, m.number)
		}
	}
	of := map[int64][]glimpse{}
	if len(numbers) > 0 {
		list, err := jsonOf(numbers)
		if err != nil {
			return nil, false, err
		}
		statuses, err := look(ctx, o, statusesOf, o.scanOfMessage, list, statusesAtOnce, f.want.texts)
		if err != nil {
			return nil, false, err
		}
		if len(statuses) >= statusesAtOnce && len(messages) > 1 {
			return nil, false, nil
		}
		for _, g := range statuses {
			of[g.number] = append(of[g.number], g)
		}
	}
	for _, m := range messages {
		of := of[m.number]
		slices.SortFunc(of, func(a, b glimpse) int { return cmp.Compare(a.key, b.key) }) // not by a collation
		if m.number == after.Number && after.Done {
			continue
		}
		if len(of) == 0 {
			rows = append(rows, glimpse{empty: true, place: place{At: string(m.at), Number: m.number, Done: true}})
		}
		for i, g := range of {
			if m.number == after.Number && g.key <= after.Key {
				continue
			}
			g.messageID, g.typ, g.receivedAt = m.id, m.typ, m.receivedAt
			g.place = place{At: string(m.at), Number: m.number, Key: g.key, Done: i == len(of)-1}
			of := redact.Value{MessageID: g.messageID, Type: g.typ, HandlerKey: g.key}
			g.lastError = o.redactor.Error(of, g.lastError)
			rows = append(rows, g)
		}
	}
	return rows, true, nil
}

// scanOfMessage scans the columns of statusesOf.
func (o *Ops) scanOfMessage(rows *sql.Rows, g *glimpse) error {
	var state string
	var lastError sql.NullString
	var created store.Stamp
	err := rows.Scan(&g.id, &g.number, &g.version, &state, &g.failing, &created, &lastError, &g.key)
	g.state, g.createdAt, g.lastError = State(state), created.Time, lastError.String
	g.failing = g.failing && g.state == StatePending
	return err
}

// ofMessage is the source of the statuses of one message ID, the latest message
// first.
type ofMessage struct {
	o      *Ops
	filter *filter
	after  place
	read   bool
	rows   []glimpse
}

func (w *ofMessage) next(ctx context.Context) (glimpse, bool, error) {
	if !w.read {
		w.read = true
		messages, err := look(ctx, w.o, oneMessage, scanMessage, w.filter.MessageID, w.filter.Namespace)
		if err != nil {
			return glimpse{}, false, err
		}
		slices.SortFunc(messages, func(a, b message) int { return cmp.Compare(b.number, a.number) })
		for _, m := range messages { // one for each namespace that has the ID
			if w.after.Number != 0 && m.number > w.after.Number {
				continue
			}
			rows, _, err := w.o.rowsOf(ctx, w.filter, []message{m}, w.after)
			if err != nil {
				return glimpse{}, false, err
			}
			w.rows = append(w.rows, rows...)
		}
	}
	if len(w.rows) == 0 {
		return glimpse{}, false, nil
	}
	g := w.rows[0]
	w.rows = w.rows[1:]
	return g, true, nil
}
