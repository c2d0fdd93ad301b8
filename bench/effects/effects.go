// Package effects is what transactional handlers write: one row for each unit
// of work, so that a check can tell whether each happened exactly once.
package effects

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Insert writes one effect: its only argument is the unit's ID. The same for
// everybody, in the placeholders of GORM and of pgx.
const (
	Insert    = `INSERT INTO bench_effects (unit) VALUES (?)`
	InsertPgx = `INSERT INTO bench_effects (unit) VALUES ($1)`
)

// Create makes the table.
func Create(ctx context.Context, dsn string) error {
	return with(ctx, dsn, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx,
			`CREATE TABLE bench_effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, unit text NOT NULL)`)
		return err
	})
}

// Check fails unless n units had one effect each.
func Check(ctx context.Context, dsn string, n int) error {
	return with(ctx, dsn, func(conn *pgx.Conn) error {
		var all, units int
		if err := conn.QueryRow(ctx, `SELECT count(*), count(DISTINCT unit) FROM bench_effects`).Scan(&all,
			&units); err != nil {
			return err
		}
		if all != n || units != n {
			return fmt.Errorf("%d effects of %d units; expected one of each of %d", all, units, n)
		}
		return nil
	})
}

func with(ctx context.Context, dsn string, work func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return work(conn)
}
