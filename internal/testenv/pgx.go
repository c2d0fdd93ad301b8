package testenv

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// PgxReserved returns pgx settings under which a connection may be used only through database/sql.
// Either a tracer must see each statement, or statements must not be prepared (as behind some
// poolers).
func PgxReserved() map[string]func(*pgx.ConnConfig) {
	mode := func(m pgx.QueryExecMode) func(*pgx.ConnConfig) {
		return func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = m }
	}
	return map[string]func(*pgx.ConnConfig){
		"a tracer":          func(c *pgx.ConnConfig) { c.Tracer = tracer{} },
		"a simple protocol": mode(pgx.QueryExecModeSimpleProtocol),
		"unnamed":           mode(pgx.QueryExecModeExec),
		"described":         mode(pgx.QueryExecModeCacheDescribe),
	}
}

type tracer struct{}

func (tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
