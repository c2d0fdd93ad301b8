package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// largeContents is the size in bytes from which on an accept calls pgx directly.
const largeContents = 64 << 10

// acceptTransaction returns how to run the transaction of an accept of these messages. If their contents are large,
// work gets a pgxtx.Tx where one is available.
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

// Transaction is Database.Transaction with one difference, wherever pgx is available: the commit fails with
// pgxtx.ErrUnconfirmed if waiting for the synchronous standby was cancelled.
func (p *Store) Transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	return p.transact(ctx, false, work)
}

func (p *Store) transact(ctx context.Context, large bool, work func(gorm.ConnPool) error) error {
	return p.Singles.Followed(ctx, func() error { return p.transactOnce(ctx, large, work) })
}

func (p *Store) transactOnce(ctx context.Context, large bool, work func(gorm.ConnPool) error) error {
	db, ok := sqlDB(p.DB.WithContext(ctx).Statement.ConnPool)
	if !ok {
		return p.Database.Transaction(ctx, work)
	}
	tx, err := pgxtx.Begin(ctx, db, p.Isolation, pgxtx.ByDeadline)
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

// sqlDB returns the database/sql pool, without the wrapper of GORM's PrepareStmt: pgx itself prepares statements.
func sqlDB(pool gorm.ConnPool) (*sql.DB, bool) {
	if prepared, ok := pool.(*gorm.PreparedStmtDB); ok {
		pool = prepared.ConnPool
	}
	db, ok := pool.(*sql.DB)
	return db, ok
}

// row is a row of database/sql or of pgx.
type row interface{ Scan(targets ...any) error }

// queryWith runs a query whose last parameter is large. Through database/sql, pgx copies all parameters into a buffer
// made for this statement, and from there into the buffer that it sends. With a pgxtx.Tx the large parameter goes
// straight into the second buffer. Everything else is the same: the statement is prepared once per connection.
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
			// The prepared statement itself may be the cause of the error, for example after a change of the schema.
			// Deallocate also works in a transaction that has failed.
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
	memory := pieces.Get().(*[]byte)
	values, formats, encoded, err := encode(c.TypeMap(), prepared.ParamOIDs, args, (*memory)[:0])
	defer keep(memory, encoded)
	if err != nil {
		return err
	}
	results := make([]int16, len(prepared.Fields))
	for i, field := range prepared.Fields {
		results[i] = c.TypeMap().FormatCodeForOID(field.DataTypeOID)
	}
	rows := pgx.RowsFromResultReader(c.TypeMap(), c.PgConn().ExecPrepared(ctx, prepared.Name, append(values, large),
		append(formats, pgx.BinaryFormatCode), results))
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// encode encodes the parameters one after the other into memory, and returns that as well. pgx's builder begins with a
// few bytes for each statement, and copies them each time it grows.
func encode(
	types *pgtype.Map, oids []uint32, args []any, memory []byte,
) (values [][]byte, formats []int16, encoded []byte, err error) {
	if len(oids) != len(args)+1 {
		return nil, nil, memory, fmt.Errorf("the statement has %d parameters, %d are given", len(oids), len(args)+1)
	}
	values, formats = make([][]byte, len(args), len(oids)), make([]int16, len(args), len(oids))
	for i, arg := range args {
		formats[i] = types.FormatCodeForOID(oids[i])
		if _, text := arg.(string); text {
			formats[i] = pgx.TextFormatCode
		}
		from := len(memory)
		longer, err := types.Encode(oids[i], formats[i], arg, memory)
		if err != nil {
			return nil, nil, memory, fmt.Errorf("encode parameter %d: %w", i+1, err)
		}
		if longer != nil { // nil is NULL
			memory, values[i] = longer, longer[from:]
		}
	}
	return values, formats, memory, nil
}
