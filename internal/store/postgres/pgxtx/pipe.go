package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// maxPiped is how many statements execAfter keeps prepared on a connection. Further ones, which come from code that
// writes values into statements, are sent by themselves.
const maxPiped = 100

// later holds statements that wait for the next statement of their transaction.
type later struct {
	// mu is held while the statements are being sent. They may come from another goroutine than the next statement.
	mu         sync.Mutex
	statements []string
	refused    error
}

// Later has statements without arguments run right before the transaction's next statement, in the same round trip if
// that is an Exec with arguments. If the server refuses one of them, the next statement fails too, and Refused returns
// the error.
func (t *Tx) Later(statements ...string) {
	l := &t.lent.later
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statements = append(l.statements, statements...)
}

// Refused returns the server's error for the statements of Later. If they were to set a savepoint, an older one of that
// name may still exist.
func (t *Tx) Refused() error {
	l := &t.lent.later
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// ExecContext implements driver.ExecerContext. It sends the statements of Later, too.
func (l *lent) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	l.later.mu.Lock()
	defer l.later.mu.Unlock()
	if len(l.later.statements) == 0 || !l.traits.prepares || !pipeable(args) {
		if err := l.flush(ctx); err != nil {
			return nil, err
		}
		return l.Conn.ExecContext(ctx, text, args)
	}
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	affected, ran, err := execAfter(ctx, l.Conn.Conn(), l.later.statements, text, values)
	l.later.sent(ran, err)
	return driver.RowsAffected(affected), err
}

// QueryContext implements driver.QueryerContext. It sends the statements of Later first.
func (l *lent) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	l.later.mu.Lock()
	defer l.later.mu.Unlock()
	if err := l.flush(ctx); err != nil {
		return nil, err
	}
	return l.Conn.QueryContext(ctx, text, args)
}

// flush sends the statements of Later by themselves. The caller holds the lock.
func (l *lent) flush(ctx context.Context) error {
	if len(l.later.statements) == 0 {
		return nil
	}
	_, err := l.Conn.ExecContext(ctx, strings.Join(l.later.statements, "; "), nil)
	l.later.sent(err == nil, err)
	return err
}

// sent drops the statements if they have run or the server has refused them. Otherwise they did not reach the server,
// or the connection is lost.
func (l *later) sent(ran bool, err error) {
	var refused *pgconn.PgError
	switch {
	case ran:
	case errors.As(err, &refused):
		l.refused = fmt.Errorf("%s: %w", strings.ToLower(strings.Join(l.statements, "; ")), err)
	default:
		return
	}
	l.statements = l.statements[:0]
}

// pipeable reports whether the arguments fit a prepared statement, and whether neither database/sql nor pgx treats one
// specially. A text without arguments may consist of several statements, so it is not pipeable.
func pipeable(args []driver.NamedValue) bool {
	for _, arg := range args {
		switch arg.Value.(type) {
		case sql.Out, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
			return false
		}
		if arg.Name != "" {
			return false
		}
	}
	return len(args) > 0
}

// execAfter runs some statements without arguments, then another one. It returns how many rows the last one affected,
// and whether those before it have all run. If they have not, either the server refused one, which aborted the
// transaction, or nothing happened, for example because an argument has a wrong type.
//
// All statements go in one round trip if the last one has run on this connection before. Otherwise those before it run
// first: the last one may be wrong, and they may be the savepoint that undoes its failure. pgx's batch would prepare it
// before them, and would close the connection for an argument of a wrong type.
func execAfter(
	ctx context.Context, c *pgx.Conn, before []string, statement string, args []any,
) (affected int64, ran bool, err error) {
	known := preparedBy(c)
	prepared := known.statements[statement]
	if prepared == nil {
		if _, err := c.Exec(ctx, strings.Join(before, "; ")); err != nil {
			return 0, false, err
		}
		before, ran = nil, true
		if len(known.statements) >= maxPiped {
			tag, err := c.Exec(ctx, statement, args...)
			return tag.RowsAffected(), ran, err
		}
		if prepared, err = known.prepare(ctx, c, statement); err != nil {
			return 0, ran, err
		}
	}
	var encoded pgx.ExtendedQueryBuilder
	if err := encoded.Build(c.TypeMap(), prepared, args); err != nil {
		return 0, ran, err
	}
	pipeline := c.PgConn().StartPipeline(ctx)
	for _, b := range before {
		pipeline.SendQueryParams(b, nil, nil, nil, nil)
	}
	pipeline.SendQueryPrepared(prepared.Name, encoded.ParamValues, encoded.ParamFormats, encoded.ResultFormats)
	err = pipeline.Sync()
	for n := 0; err == nil && n <= len(before); n++ {
		ran = n == len(before)
		affected, err = result(pipeline)
	}
	if end := pipeline.Close(); err == nil {
		err = end
	}
	if err != nil && ran {
		known.forget(ctx, c, statement)
	}
	return affected, ran, err
}

func result(pipeline *pgconn.Pipeline) (affected int64, err error) {
	results, err := pipeline.GetResults()
	if err != nil {
		return 0, err
	}
	reader, ok := results.(*pgconn.ResultReader)
	if !ok {
		return 0, fmt.Errorf("unexpected result of a statement: %T", results)
	}
	tag, err := reader.Close()
	return tag.RowsAffected(), err
}

// preparations holds the statements that a connection has prepared for execAfter, under separate names. pgx finds
// statements by their text, so it would share them with other callers, who may close them.
type preparations struct {
	statements map[string]*pgconn.StatementDescription
	made       int
}

const preparationsKey = "github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"

func preparedBy(c *pgx.Conn) *preparations {
	data := c.PgConn().CustomData()
	p, ok := data[preparationsKey].(*preparations)
	if !ok {
		p = &preparations{statements: map[string]*pgconn.StatementDescription{}}
		data[preparationsKey] = p
	}
	return p
}

func (p *preparations) prepare(
	ctx context.Context, c *pgx.Conn, statement string,
) (*pgconn.StatementDescription, error) {
	p.made++
	prepared, err := c.Prepare(ctx, fmt.Sprintf("inbox_%d", p.made), statement)
	if err == nil {
		p.statements[statement] = prepared
	}
	return prepared, err
}

// forget deallocates a prepared statement that may be the cause of an error, for example after a change of the schema.
// This also works in a transaction that has failed.
func (p *preparations) forget(ctx context.Context, c *pgx.Conn, statement string) {
	_ = c.Deallocate(ctx, p.statements[statement].Name)
	delete(p.statements, statement)
}
