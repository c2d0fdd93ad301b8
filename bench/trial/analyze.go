package trial

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Analyze updates the planner's statistics after a trial has loaded rows, as autovacuum would
// within a minute. The statistics of an empty table could cause bad plans for any variant.
func (e *Env) Analyze(ctx context.Context) (err error) {
	if strings.Contains(e.DSN, "@tcp(") {
		return e.analyzeMySQL(ctx)
	}
	conn, err := pgx.Connect(ctx, e.DSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, "ANALYZE")
	return err
}

// analyzeMySQL is for the tables of a database, which MySQL wants to be named.
func (e *Env) analyzeMySQL(ctx context.Context) (err error) {
	db, err := sql.Open("mysql", e.DSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables string
	err = db.QueryRowContext(ctx, "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = DATABASE()").
		Scan(&tables)
	if err == nil {
		_, err = db.ExecContext(ctx, "ANALYZE TABLE "+tables)
	}
	return err
}
