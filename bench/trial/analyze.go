package trial

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Analyze gives the planner statistics of what a trial has loaded, as
// autovacuum would within a minute: in place of the ones of an empty table,
// which can cost anybody a bad plan.
func (e *Env) Analyze(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, e.DSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, "ANALYZE")
	return err
}
