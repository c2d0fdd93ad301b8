package ours

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/gorm-inbox/inbox/handler"
)

// Loads are rows for plain loops. Copy shows the limit of what accepting could reach, without
// deduplication, conflicts or responses. Their numbers are taken before the timed part.
type Loads struct {
	messages, statuses [][]any
	handlers           int
}

// NewLoads returns the rows that accepting these messages would store. It takes their numbers from the
// inbox's sequence, as accepting would, so that what is accepted later comes after them.
func (ib *Inbox) NewLoads(ctx context.Context, messages []handler.RawMessage, handlers int) (*Loads, error) {
	const sequence = `pg_get_serial_sequence('inbox_messages', 'number')`
	var last int64
	reserve := `SELECT setval(` + sequence + `, nextval(` + sequence + `) + ?)`
	if err := ib.DB.WithContext(ctx).Raw(reserve, len(messages)).Scan(&last).Error; err != nil {
		return nil, err
	}
	l := &Loads{handlers: handlers}
	now := time.Now().UTC()
	for i, m := range messages {
		number := last - int64(len(messages)) + int64(i) + 1
		l.messages = append(l.messages, []any{m.ID, m.Channel, number, "publish", m.Type, m.Source, m.Content, m.ContentType,
			"{}", now})
		for h := range handlers {
			l.statuses = append(l.statuses, []any{[16]byte(uuid.Must(uuid.NewV7())), number, m.ID,
				fmt.Sprintf("bench-handler-%d", h+1), now})
		}
	}
	return l, nil
}

// Copy loads messages and statuses, with a batch of both in each transaction.
func (l *Loads) Copy(ctx context.Context, dsn string, batch, connections int) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(connections)
	for from := 0; from < len(l.messages); from += batch {
		to := min(from+batch, len(l.messages))
		g.Go(func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.copy(ctx, tx, from, to) })
		})
	}
	return g.Wait()
}

func (l *Loads) copy(ctx context.Context, tx pgx.Tx, from, to int) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"inbox_messages"},
		[]string{"id", "namespace", "number", "transport_name", "type", "source", "content", "content_type",
			"serialized_properties", "received_at"}, pgx.CopyFromRows(l.messages[from:to]))
	if err != nil {
		return err
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"inbox_handler_statuses"},
		[]string{"id", "message_number", "message_id", "handler_key", "created_at"},
		pgx.CopyFromRows(l.statuses[from*l.handlers:to*l.handlers]))
	return err
}

// insertMinimal stores messages that are new, with a status each, in one statement. As in an accept,
// the contents come in one piece.
const insertMinimal = `WITH fresh AS (
		INSERT INTO inbox_messages (id, namespace, number, transport_name, type, source, content, content_type,
			serialized_properties, received_at)
		SELECT m.id, $2, m.number, 'publish', $3, $4, substring($10::bytea FROM m.place FOR m.length), $5, '{}', now()
		FROM unnest($1::text[], $6::bigint[], $8::integer[], $9::integer[]) AS m(id, number, place, length)
		ON CONFLICT (id, namespace) DO NOTHING
		RETURNING id, number)
	INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at)
	SELECT s.id, fresh.number, fresh.id, 'bench-handler-1', now()
	FROM unnest($7::uuid[], $6::bigint[]) AS s(id, number) JOIN fresh ON fresh.number = s.number`

// insert is copy for messages with one status each, and stores only those that are new. No trial has
// any other.
func (l *Loads) insert(ctx context.Context, pool *pgxpool.Pool, from, to int) error {
	n := to - from
	ids, numbers, statuses := make([]string, 0, n), make([]int64, 0, n), make([][16]byte, 0, n)
	places, lengths := make([]int32, 0, n), make([]int32, 0, n)
	contents := make([]byte, 0, n*(len(l.messages[from][6].([]byte))+1))
	for i, m := range l.messages[from:to] {
		content := m[6].([]byte)
		ids, numbers = append(ids, m[0].(string)), append(numbers, m[2].(int64))
		places, lengths = append(places, int32(len(contents)+1)), append(lengths, int32(len(content)))
		contents, statuses = append(contents, content...), append(statuses, l.statuses[from+i][0].([16]byte))
	}
	first := l.messages[from] // all have the same namespace, type, source and content type
	tag, err := pool.Exec(ctx, insertMinimal, ids, first[1], first[4], first[5], first[7], numbers, statuses,
		places, lengths, contents)
	if err == nil && int(tag.RowsAffected()) != n {
		err = fmt.Errorf("%d of %d inserted", tag.RowsAffected(), n)
	}
	return err
}
