package ours

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/gorm-inbox/inbox/handler"
)

// Preload fills the tables with n copies of a stored message and its statuses, under IDs of their
// own. Their times are shifted as if they had been accepted a millisecond apart, up to the
// original's. Contents are cut to preloadBytes. Everything else is copied, so that the rows follow
// the schema.
//
// Two connections insert the rows one after the other into tables with all their indexes. So the
// indexes are as full as such inserts leave them. Indexes built afterwards would be packed. At the
// end the tables are vacuumed and analysed.
func (ib *Inbox) Preload(ctx context.Context, dsn, id string, n int, ordered bool) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	statement, err := preloadStatement(ctx, conn, ordered)
	if err != nil {
		return fmt.Errorf("preload: %w", err)
	}
	var next atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	for range 2 {
		g.Go(func() error {
			return preloadChunks(gctx, dsn, statement, id, n, &next)
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("preload: %w", err)
	}
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE) inbox_messages, inbox_handler_statuses"); err != nil {
		return fmt.Errorf("preload: vacuum: %w", err)
	}
	return nil
}

const (
	preloadBytes = 100
	preloadChunk = 5_000
)

// preloadChunks inserts the chunks that no other connection has taken. Each statement inserts the
// rows together with those that they refer to, so the triggers of foreign keys would find nothing
// wrong and are disabled.
func preloadChunks(ctx context.Context, dsn, statement, id string, n int, next *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "SET session_replication_role = replica; SET synchronous_commit = off"); err != nil {
		return err
	}
	for {
		to := int(next.Add(preloadChunk))
		from := to - preloadChunk
		if from >= n {
			return nil
		}
		if _, err := conn.Exec(ctx, statement, id, from+1, min(to, n), n); err != nil {
			return err
		}
	}
}

// preloadStatement returns a statement that copies the message $1 and its statuses for the numbers
// $2 to $3 of $4. The database assigns the columns that it numbers. Columns that refer to the
// message refer to its copy.
func preloadStatement(ctx context.Context, conn *pgx.Conn, ordered bool) (string, error) {
	messages, err := columnsOf(ctx, conn, "inbox_messages", nil)
	if err != nil {
		return "", err
	}
	references := map[string]string{"message_id": "c.id"}
	if err := addReferences(ctx, conn, references); err != nil {
		return "", err
	}
	statuses, err := columnsOf(ctx, conn, "inbox_handler_statuses", references)
	if err != nil {
		return "", err
	}
	id := "gen_random_uuid()::text"
	if ordered {
		id = uuidV7("o.received_at - " + age)
	}
	messages.replace("id", id)
	messages.replace("content", fmt.Sprintf("substring(o.content FOR %d)", preloadBytes))
	statuses.replace("id", uuidV7("c.received_at")+"::uuid")
	return fmt.Sprintf(`
		WITH c AS (
			INSERT INTO inbox_messages (%s)
			SELECT %s FROM inbox_messages o, generate_series($2::int, $3::int) i WHERE o.id = $1
			RETURNING *
		)
		INSERT INTO inbox_handler_statuses (%s)
		SELECT %s FROM c, inbox_handler_statuses o, inbox_messages m WHERE o.message_number = m.number AND m.id = $1`,
		messages.names(), messages.values(age), statuses.names(), statuses.values("(m.received_at - c.received_at)")), nil
}

// age is how much older copy i is than the original.
const age = "($4::int - i + 1) * interval '1 millisecond'"

// uuidV7 returns an SQL expression for a UUIDv7 of that time, as text.
func uuidV7(at string) string {
	hex := "lpad(to_hex((extract(epoch FROM " + at + ") * 1000)::bigint), 12, '0')"
	return "(substr(" + hex + ", 1, 8) || '-' || substr(" + hex + ", 9) || '-7' || substr(gen_random_uuid()::text, 16))"
}

// columns are a table's columns, with the expressions for their copies.
type columns []column

type column struct {
	name, value string
	isTime      bool
}

func columnsOf(ctx context.Context, conn *pgx.Conn, table string, references map[string]string) (columns, error) {
	rows, err := conn.Query(ctx, `
		SELECT attname::text, atttypid = 'timestamptz'::regtype FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = ''
		AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum AND pg_get_expr(adbin, adrelid) LIKE 'nextval(%')
		ORDER BY attnum`, table)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (column, error) {
		var c column
		err := row.Scan(&c.name, &c.isTime)
		c.value = "o." + c.name
		if from, ok := references[c.name]; ok {
			c.value, c.isTime = from, false
		}
		return c, err
	})
}

// addReferences adds the columns of statuses that refer to messages by a foreign key.
func addReferences(ctx context.Context, conn *pgx.Conn, references map[string]string) error {
	rows, err := conn.Query(ctx, `
		SELECT a.attname::text, b.attname::text
		FROM pg_constraint c, unnest(c.conkey, c.confkey) k (own, other), pg_attribute a, pg_attribute b
		WHERE c.contype = 'f' AND c.conrelid = 'inbox_handler_statuses'::regclass AND c.confrelid = 'inbox_messages'::regclass
		AND a.attrelid = c.conrelid AND a.attnum = k.own AND b.attrelid = c.confrelid AND b.attnum = k.other`)
	if err != nil {
		return err
	}
	var own, other string
	_, err = pgx.ForEachRow(rows, []any{&own, &other}, func() error {
		references[own] = "c." + other
		return nil
	})
	return err
}

func (c columns) replace(name, value string) {
	if i := slices.IndexFunc(c, func(c column) bool { return c.name == name }); i >= 0 {
		c[i].value, c[i].isTime = value, false
	}
}

func (c columns) names() string {
	var names []string
	for _, one := range c {
		names = append(names, one.name)
	}
	return strings.Join(names, ", ")
}

func (c columns) values(age string) string {
	var values []string
	for _, one := range c {
		if one.isTime {
			one.value += " - " + age
		}
		values = append(values, one.value)
	}
	return strings.Join(values, ", ")
}

// Template accepts and processes a message, as an original for Preload.
func (ib *Inbox) Template(ctx context.Context) (id string, err error) {
	m := OrderedMessages(1)[0]
	if _, err := ib.Accept(ctx, m); err != nil {
		return "", err
	}
	drained, err := ib.ProcessPending(ctx)
	if err != nil {
		return "", err
	}
	if drained.Completed == 0 {
		return "", fmt.Errorf("preload: the original was not completed: %+v", drained)
	}
	return m.ID, nil
}

// CheckMessages returns an error unless these messages are stored, and the numbers of statuses and
// completed statuses are as given, each completed by one attempt and one handler call.
func (ib *Inbox) CheckMessages(ctx context.Context, messages []handler.RawMessage, statuses, completed int) error {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	pool, err := ib.DB.DB()
	if err != nil {
		return err
	}
	var m, s, c int
	err = pool.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM inbox_messages WHERE id = ANY($1)), count(*),
			count(*) FILTER (WHERE `+once+`)
		FROM inbox_handler_statuses WHERE message_number IN (SELECT number FROM inbox_messages WHERE id = ANY($1))`, ids).Scan(&m, &s, &c)
	if err != nil {
		return err
	}
	if m != len(messages) || s != statuses || c != completed {
		return fmt.Errorf("messages %d, statuses %d, completed %d; expected %d, %d, %d", m, s, c, len(messages), statuses,
			completed)
	}
	return ib.checkHandled(completed)
}
