package pgxtx

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// maxPiped is how many statements ExecAfter keeps prepared on a connection. Further ones, which
// come from code that writes values into statements, are sent by themselves.
const maxPiped = 100

// ExecAfter runs some statements without arguments, then another one. It returns how many rows the
// last one affected, and whether those before it have all run. If they have not, either the server
// refused one, which aborted the transaction, or nothing happened, for example because an argument
// has a wrong type.
//
// All statements go in one round trip if the last one has run on this connection before. Otherwise
// those before it run first: the last one may be wrong, and they may be the savepoint that undoes
// its failure. pgx's own batch would prepare it before them, and would close the connection for an
// argument of a wrong type.
func ExecAfter(
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

// preparations holds the statements that a connection has prepared for ExecAfter, under names of
// their own. pgx finds statements of other callers by their text, and these callers may close them.
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

// forget deallocates a prepared statement that may be the cause of an error, for example after a
// change of the schema. This also works in a transaction that has failed.
func (p *preparations) forget(ctx context.Context, c *pgx.Conn, statement string) {
	_ = c.Deallocate(ctx, p.statements[statement].Name)
	delete(p.statements, statement)
}
