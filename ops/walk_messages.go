package ops

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// By messages_received_at, newest first, from the place on: the row there is
// given once more, its statuses may not all have been looked at.
const walkMessages = `
SELECT number, id, type, source, received_at, {received as stored} FROM {messages}
WHERE (received_at, number) <= ($1, $2) AND received_at >= $3
ORDER BY received_at DESC, number DESC LIMIT $4`

// By the messages' primary key.
const oneMessage = `
SELECT number, id, type, source, received_at, {received as stored} FROM {messages} WHERE id = $1`

// message is a message without its content.
type message struct {
	number          int64
	id, typ, source string
	receivedAt      time.Time
	at              stored
}

func scanMessage(rows *sql.Rows, m *message) error {
	var received store.Stamp
	err := rows.Scan(&m.number, &m.id, &m.typ, &m.source, &received, &m.at)
	m.receivedAt = received.Time
	return err
}

// byReceived walks messages and the statuses of each by handler key.
type byReceived struct {
	o      *Ops
	oldest any // From as an argument
	chunk  int
	after  place
	rows   []row
	end    bool
}

func (o *Ops) byReceived(f *filter, after *place, chunk int) *byReceived {
	w := &byReceived{o: o, chunk: chunk, after: place{At: lastTime, Number: 1 << 62}}
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

func (w *byReceived) next(ctx context.Context) (row, bool, error) {
	for len(w.rows) == 0 {
		if w.end {
			return row{}, false, nil
		}
		if err := w.fill(ctx); err != nil {
			return row{}, false, err
		}
	}
	r := w.rows[0]
	w.rows = w.rows[1:]
	return r, true, nil
}

func (w *byReceived) fill(ctx context.Context) error {
	at, err := w.o.argument(w.after.At)
	if err != nil {
		return badInput("cursor", "it is not one of this list")
	}
	messages, err := look(ctx, w.o, walkMessages, scanMessage, at, w.after.Number, w.oldest, w.chunk+1)
	if err != nil {
		return err
	}
	w.end = len(messages) <= w.chunk
	if w.rows, err = w.o.rowsOf(ctx, messages, w.after); err != nil {
		return err
	}
	if len(messages) > 0 {
		last := messages[len(messages)-1]
		w.after = place{At: string(last.at), Number: last.number, Done: true}
	}
	w.chunk = min(2*w.chunk, mostAtOnce)
	return nil
}

// rowsOf are the statuses of messages behind after, in the messages' order and
// by handler key; of a message without any, one empty row.
func (o *Ops) rowsOf(ctx context.Context, messages []message, after place) ([]row, error) {
	numbers := make([]int64, len(messages))
	for i, m := range messages {
		numbers[i] = m.number
	}
	statuses, err := o.statusesOf(ctx, numbers)
	if err != nil {
		return nil, err
	}
	of := map[int64][]row{}
	for _, r := range statuses {
		of[r.number] = append(of[r.number], r)
	}
	var rows []row
	for _, m := range messages {
		of := of[m.number]
		slices.SortFunc(of, func(a, b row) int { return cmp.Compare(a.HandlerKey, b.HandlerKey) }) // not by a collation
		if m.number == after.Number && after.Done {
			continue
		}
		if len(of) == 0 {
			rows = append(rows, row{empty: true, place: place{At: string(m.at), Number: m.number, Done: true}})
		}
		for i, r := range of {
			if m.number == after.Number && r.HandlerKey <= after.Key {
				continue
			}
			r.Type, r.Source, r.ReceivedAt = m.typ, m.source, m.receivedAt
			r.place = place{At: string(m.at), Number: m.number, Key: r.HandlerKey, Done: i == len(of)-1}
			o.redactStatus(&r.Status)
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// ofMessage is the source of one message's statuses.
type ofMessage struct {
	o     *Ops
	id    string
	after place
	read  bool
	rows  []row
}

func (w *ofMessage) next(ctx context.Context) (row, bool, error) {
	if !w.read {
		w.read = true
		messages, err := look(ctx, w.o, oneMessage, scanMessage, w.id)
		if err == nil && len(messages) > 0 {
			w.rows, err = w.o.rowsOf(ctx, messages, w.after)
		}
		if err != nil {
			return row{}, false, err
		}
	}
	if len(w.rows) == 0 {
		return row{}, false, nil
	}
	r := w.rows[0]
	w.rows = w.rows[1:]
	return r, true, nil
}
