// Package effects has the table that transactional handlers write to. It has one row for each unit
// of work, so a check can verify that each happened exactly once.
package effects

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Insert writes one effect. Its only argument is the unit's ID. All variants use the same
// statement, with the placeholders of GORM or of pgx.
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

// Check returns an error unless each of n units has exactly one effect.
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
