// Package effects has the table that transactional handlers write to. It has one row for each unit
// of work, so a check can verify that each happened exactly once.
package effects

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"; GORM's brings "mysql"
)

// Insert writes one effect. Its only argument is the unit's ID. All variants use the same
// statement, with the placeholders of GORM or of pgx.
const (
	Insert    = `INSERT INTO bench_effects (unit) VALUES (?)`
	InsertPgx = `INSERT INTO bench_effects (unit) VALUES ($1)`
)

// Create makes the table.
func Create(ctx context.Context, dsn string) error {
	text := `CREATE TABLE bench_effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, unit text NOT NULL)`
	if driver(dsn) == "mysql" {
		text = `CREATE TABLE bench_effects (id bigint AUTO_INCREMENT PRIMARY KEY, unit text NOT NULL)`
	}
	return with(dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, text)
		return err
	})
}

// Check returns an error unless each of n units has exactly one effect.
func Check(ctx context.Context, dsn string, n int) error {
	return with(dsn, func(db *sql.DB) error {
		var all, units int
		if err := db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT unit) FROM bench_effects`).Scan(&all,
			&units); err != nil {
			return err
		}
		if all != n || units != n {
			return fmt.Errorf("%d effects of %d units; expected one of each of %d", all, units, n)
		}
		return nil
	})
}

func driver(dsn string) string {
	if strings.Contains(dsn, "@tcp(") {
		return "mysql"
	}
	return "pgx"
}

func with(dsn string, work func(*sql.DB) error) (err error) {
	db, err := sql.Open(driver(dsn), dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return work(db)
}
