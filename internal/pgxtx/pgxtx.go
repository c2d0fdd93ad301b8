// Package pgxtx has transactions of database/sql that let pgx itself be spoken
// to, for what database/sql has no words for: large parameters that are not
// copied, several statements in one round trip.
package pgxtx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrUnavailable says that there is no such transaction here: the connection is
// not pgx's, somebody has put something around it (that should see the
// statements: tracing, say), its statements are not to be prepared (as behind
// some poolers), or it could not begin. Nothing has happened then; the usual way
// of beginning may well succeed, as it tries another connection if one is dead.
var ErrUnavailable = errors.New("no transaction of pgx here")

// Tx is a transaction on a connection of its own. Commit or Rollback, or the end
// of the context it was begun with, gives the connection back.
type Tx struct {
	*sql.Tx
	conn   *sql.Conn
	detach func() bool // from the context, which may live for long
}

// Begin begins a transaction; ErrUnavailable is among the errors.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (*Tx, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if !bare(conn) {
		return nil, errors.Join(ErrUnavailable, conn.Close())
	}
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return nil, errors.Join(ErrUnavailable, err, conn.Close())
	}
	// Close waits for the transaction to end, which its context sees to.
	return &Tx{Tx: tx, conn: conn, detach: context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

func bare(conn *sql.Conn) bool {
	return nil == conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return ErrUnavailable
		}
		if config := c.Conn().Config(); config.Tracer != nil || config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
			return ErrUnavailable
		}
		return nil
	})
}

// Commit commits the transaction and gives the connection back.
func (t *Tx) Commit() error { return t.end(t.Tx.Commit()) }

// Rollback undoes the transaction and gives the connection back.
func (t *Tx) Rollback() error { return t.end(t.Tx.Rollback()) }

func (t *Tx) end(err error) error {
	t.detach()
	_ = t.conn.Close() // an error says that it is closed already
	return err
}

// Do calls work with the connection, beside nobody, unless ctx or the
// transaction has ended: then it fails with ctx's error or sql.ErrTxDone. What
// work panics with, its caller gets.
//
// It is a statement of the transaction for database/sql, so that everything holds
// that holds for one: sql.Conn.Raw would lend the connection also when the context
// has just undone the transaction, to whoever has not noticed yet and would write
// outside of any; and where work panics, it would wait for the transaction's end.
func (t *Tx) Do(ctx context.Context, work func(*pgx.Conn) error) error {
	var l loan
	l.work = work
	if _, err := t.Tx.ExecContext(ctx, "", &l); !l.given {
		return err
	}
	return l.err
}

// loan is an argument that pgx shows the connection, as one that rewrites the
// statement, before anything is sent. Nothing else is, as it fails.
type loan struct {
	work  func(*pgx.Conn) error
	given bool
	err   error
}

var errReturned = errors.New("the connection was lent, there is no statement")

// RewriteQuery implements pgx.QueryRewriter.
func (l *loan) RewriteQuery(_ context.Context, c *pgx.Conn, _ string, _ []any) (string, []any, error) {
	l.given = true
	l.err = l.work(c)
	return "", nil, errReturned
}
