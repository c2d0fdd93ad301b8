package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/pgxtx"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// largeContents is from how many bytes on an accept speaks to pgx itself.
const largeContents = 64 << 10

// acceptTransaction is the transaction for an accept of these messages. If their
// contents are large, work gets a pgxtx.Tx where it can be had.
func (p *Store) acceptTransaction(messages []store.NewMessage) base.Transacting {
	content := 0
	for i := range messages {
		content += len(messages[i].Content)
	}
	if content < p.large {
		return p.Transaction
	}
	return func(ctx context.Context, work func(gorm.ConnPool) error) error { return p.transact(ctx, true, work) }
}

// Transaction is Database.Transaction whose commit fails, with
// pgxtx.ErrUnconfirmed, if waiting for the synchronous standby was cancelled,
// wherever pgx can be spoken to.
func (p *Store) Transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	return p.transact(ctx, false, work)
}

func (p *Store) transact(ctx context.Context, large bool, work func(gorm.ConnPool) error) error {
	db, ok := sqlDB(p.DB.WithContext(ctx).Statement.ConnPool)
	if !ok {
		return p.Database.Transaction(ctx, work)
	}
	tx, err := pgxtx.Begin(ctx, db, p.Isolation)
	if errors.Is(err, pgxtx.ErrUnavailable) {
		return p.Database.Transaction(ctx, work)
	}
	if err != nil {
		return store.WithContextError(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // after an error or a panic
	pool := gorm.ConnPool(tx.Tx)
	if large && tx.Prepares() {
		pool = tx
	}
	if err := work(pool); err != nil {
		return store.WithContextError(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return store.FailedCommit(store.WithContextError(ctx, err))
	}
	return nil
}

// sqlDB is the pool of database/sql below what GORM's PrepareStmt puts around it:
// pgx prepares statements by itself.
func sqlDB(pool gorm.ConnPool) (*sql.DB, bool) {
	if prepared, ok := pool.(*gorm.PreparedStmtDB); ok {
		pool = prepared.ConnPool
	}
	db, ok := pool.(*sql.DB)
	return db, ok
}

// row is a row of either kind.
type row interface{ Scan(targets ...any) error }

// queryWith is query for a statement whose last parameter is large. pgx copies
// all parameters into a buffer made for this statement, and from there into the
// one it sends, made for this statement, too; with a pgxtx.Tx the large one goes
// straight into the second. It is the same otherwise: the statement is prepared
// once for each connection.
func queryWith[T any](
	ctx context.Context, pool gorm.ConnPool, large []byte, statement string, scan func(row, *T) error, args ...any,
) ([]T, error) {
	tx, ok := pool.(*pgxtx.Tx)
	if !ok {
		return store.Query(ctx, pool, statement, func(rows *sql.Rows, into *T) error {
			return scan(rows, into)
		}, append(args, large)...)
	}
	var found []T
	err := tx.Do(ctx, func(c *pgx.Conn) error {
		err := execPrepared(ctx, c, large, statement, args, func(rows pgx.Rows) error {
			var one T
			if err := scan(rows, &one); err != nil {
				return err
			}
			found = append(found, one)
			return nil
		})
		if err != nil {
			// What it was prepared as may be what is wrong with it, as after a
			// change of the schema. A statement can be closed also in a
			// transaction that has failed.
			_ = c.Deallocate(ctx, statement)
		}
		return err
	})
	if err != nil {
		return nil, store.WithContextError(ctx, err)
	}
	return found, nil
}

func execPrepared(
	ctx context.Context, c *pgx.Conn, large []byte, statement string, args []any, each func(pgx.Rows) error,
) error {
	prepared, err := c.Prepare(ctx, statement, statement)
	if err != nil {
		return err
	}
	var query pgx.ExtendedQueryBuilder
	if err := query.Build(c.TypeMap(), prepared, append(args, nil)); err != nil {
		return err
	}
	last := len(query.ParamValues) - 1
	query.ParamValues[last], query.ParamFormats[last] = large, pgx.BinaryFormatCode
	rows := pgx.RowsFromResultReader(c.TypeMap(), c.PgConn().ExecPrepared(ctx, prepared.Name, query.ParamValues,
		query.ParamFormats, query.ResultFormats))
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
