// Package pgxtx reaches pgx itself through a pool of database/sql. It does what database/sql cannot do: rows that are
// not copied twice, large parameters that are not copied, several statements in one round trip, and a commit that says
// whether the synchronous standby has it. Code that is here for speed must improve the benchmarks' lines accept,
// process or transactional; otherwise remove it.
package pgxtx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrUnavailable means that pgx cannot be reached: the connection is not pgx's, something wraps it that should see the
// statements (such as tracing), or nothing reached the server. Nothing has happened then. The same through database/sql
// may still succeed, because that tries another connection if one is dead.
var ErrUnavailable = errors.New("pgx cannot be reached here")

// Query runs a query on one connection and calls each for every row. It returns the first error, of the query or of
// each. Its errors include ErrUnavailable.
func Query(ctx context.Context, db *sql.DB, statement string, args []any, each func(pgx.Rows) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return ErrUnavailable
		}
		rows, err := c.Conn().Query(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if pgconn.SafeToRetry(err) {
		return errors.Join(ErrUnavailable, err)
	}
	return err
}

// Tx is a transaction on its own connection. Commit, Rollback or the end of its context returns the connection to the
// pool.
type Tx struct {
	*sql.Tx
	conn   *sql.Conn
	detach func() bool // from the context, which may live for long
	lent   *lent
}

// Begin begins a transaction. bound is how the server notices that we have vanished; further settings are SET LOCAL
// statements. They take no round trip, but for one of each connection with ByKeepalive. Its errors include
// ErrUnavailable.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions, bound Bound, settings ...string) (*Tx, error) {
	conn, lent, err := lend(ctx, db, bound, settings)
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return nil, errors.Join(ErrUnavailable, err, conn.Close())
	}
	// Close waits for the end of the transaction, which the end of its context causes.
	return &Tx{Tx: tx, conn: conn, lent: lent, detach: context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

// GetDBConn lets gorm.DB.DB find the application's pool.
func (t *Tx) GetDBConn() (*sql.DB, error) { return t.lent.pool, nil }

// Prepares reports whether statements may be prepared on the connection. Behind some poolers they must not be. Do not
// prepare any in Do if it is false.
func (t *Tx) Prepares() bool { return t.lent.traits.prepares }

// Commit commits the transaction and returns the connection to the pool. Its errors include ErrUnconfirmed.
func (t *Tx) Commit() error { return t.end(t.Tx.Commit()) }

// withDriverConn calls work with the driver's connection, unless the connection is closed.
//
// The transaction's context may end during the call, and database/sql then closes conn concurrently:
//
// 1. Raw sees that conn is open.
// 2. The other goroutine marks conn as closed, closes the driver's connection and sets it to nil.
// 3. Raw passes that nil on and panics.
//
// withDriverConn recovers from this. Nothing was lent, and conn is closed as if that had happened a moment earlier.
func withDriverConn(conn *sql.Conn, work func(driverConn any)) {
	called := false
	defer func() {
		if called {
			return
		}
		_ = recover()
	}()
	_ = conn.Raw(func(driverConn any) error {
		called = true
		work(driverConn)
		return nil
	})
}

// PrepareContext prepares a statement that may be passed to other transactions of the pool.
func (t *Tx) PrepareContext(ctx context.Context, text string) (stmt *sql.Stmt, err error) {
	err = t.Do(ctx, func(*pgx.Conn) (err error) {
		stmt, err = t.lent.prepare(ctx, text)
		return err
	})
	return stmt, err
}

// Rollback undoes the transaction and returns the connection to the pool.
func (t *Tx) Rollback() error { return t.end(t.Tx.Rollback()) }

func (t *Tx) end(err error) error {
	t.detach()
	_ = t.conn.Close() // an error means that it is already closed
	return err
}

// Do calls work with exclusive use of the connection. If ctx or the transaction has ended, it fails with ctx's error or
// sql.ErrTxDone instead. A panic of work reaches the caller.
//
// For database/sql this is a statement of the transaction, so all of its rules for statements hold. sql.Conn.Raw would
// have two faults. It lends the connection even if the context has just undone the transaction, so a caller that has
// not noticed would write outside of any transaction. And if work panics, it waits for the transaction's end.
func (t *Tx) Do(ctx context.Context, work func(*pgx.Conn) error) error {
	var l connRewriter
	l.work = work
	if _, err := t.Tx.ExecContext(ctx, "", &l); !l.given {
		return err
	}
	return l.err
}

// connRewriter is an argument to which pgx passes the connection, because it claims to rewrite the statement, before
// anything is sent. RewriteQuery returns an error, so nothing else is sent.
type connRewriter struct {
	work  func(*pgx.Conn) error
	given bool
	err   error
}

var errReturned = errors.New("the connection was lent, there is no statement")

// RewriteQuery implements pgx.QueryRewriter.
func (l *connRewriter) RewriteQuery(_ context.Context, c *pgx.Conn, _ string, _ []any) (string, []any, error) {
	l.given = true
	l.err = l.work(c)
	return "", nil, errReturned
}
