package trial

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Analyze updates the planner's statistics after a trial has loaded rows, as autovacuum would
// within a minute. The statistics of an empty table could cause bad plans for any variant.
func (e *Env) Analyze(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, e.DSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, "ANALYZE")
	return err
}
