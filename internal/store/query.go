package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// WithContextError adds the context's error to an error that hides it, such as "transaction has already been committed
// or rolled back".
func WithContextError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// Query returns the rows of a statement. We do not use QueryRowContext: with PrepareStmt, GORM's version returns a row
// that panics if preparing fails.
func Query[T any](
	ctx context.Context, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args ...any,
) (found []T, err error) {
	err = RunAlone(ctx, pool, func(ctx context.Context, pool gorm.ConnPool) error {
		found = nil // also of a try before
		rows, err := pool.QueryContext(ctx, statement, args...)
		if err != nil {
			return WithContextError(ctx, err)
		}
		defer rows.Close()
		for rows.Next() {
			var row T
			if err := scan(rows, &row); err != nil {
				return err
			}
			found = append(found, row)
		}
		if err := rows.Err(); err != nil {
			return WithContextError(ctx, err)
		}
		return WithContextError(ctx, rows.Close())
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Value scans a row of one column.
func Value[T any](rows *sql.Rows, into *T) error { return rows.Scan(into) }

// Exec returns how many rows a statement affected.
func Exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (affected int64, err error) {
	err = RunAlone(ctx, pool, func(ctx context.Context, pool gorm.ConnPool) error {
		result, err := pool.ExecContext(ctx, statement, args...)
		if err == nil {
			affected, err = result.RowsAffected()
		}
		return WithContextError(ctx, err)
	})
	if err != nil {
		return 0, err
	}
	return affected, nil
}
