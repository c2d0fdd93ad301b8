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
// statements: tracing, say), or it could not begin. Nothing has happened then; the
// usual way of beginning may well succeed, as it tries another connection if one
// is dead.
var ErrUnavailable = errors.New("no transaction of pgx here")

// Tx is a transaction on a connection of its own. Commit or Rollback, or the end
// of the context it was begun with, gives the connection back.
type Tx struct {
	*sql.Tx
	ctx      context.Context
	conn     *sql.Conn
	detach   func() bool // from the context, which may live for long
	prepares bool
}

// Begin begins a transaction; ErrUnavailable is among the errors.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (*Tx, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	traits := traitsOf(conn)
	if !traits.bare {
		return nil, errors.Join(ErrUnavailable, conn.Close())
	}
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return nil, errors.Join(ErrUnavailable, err, conn.Close())
	}
	// Close waits for the transaction to end, which its context sees to.
	return &Tx{Tx: tx, ctx: ctx, conn: conn, prepares: traits.prepares,
		detach: context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

// Prepares reports whether statements may be prepared on the connection; behind
// some poolers they must not be. Do not prepare any in Do without it.
func (t *Tx) Prepares() bool { return t.prepares }

// traits are what Begin has to know of a connection. They never change, so that
// the connection keeps them: its configuration is copied for whoever asks for it.
type traits struct {
	bare     bool // pgx's own, without a tracer
	prepares bool
}

const traitsKey = "github.com/gorm-inbox/inbox/internal/pgxtx.traits"

func traitsOf(conn *sql.Conn) (of traits) {
	_ = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return nil
		}
		data := c.Conn().PgConn().CustomData()
		if of, ok = data[traitsKey].(traits); !ok {
			config := c.Conn().Config()
			of = traits{bare: config.Tracer == nil, prepares: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement}
			data[traitsKey] = of
		}
		return nil
	})
	return of
}

// Commit commits the transaction and gives the connection back. ErrUnconfirmed is
// among the errors.
func (t *Tx) Commit() error {
	if !t.detach() {
		return t.end(t.Tx.Commit()) // the context has ended, the connection is on its way back
	}
	var own *commit
	lend(t.conn, func(driverConn any) { own = startCommit(t.ctx, driverConn.(*stdlib.Conn).Conn()) })
	err := t.Tx.Commit()
	if own != nil {
		// That has sent nothing, as pgx refuses a busy connection. It has ended
		// the transaction for database/sql: whoever writes on gets sql.ErrTxDone.
		err = own.err
		lend(t.conn, func(any) { own.finish() })
	}
	return t.end(err)
}

// lend calls work with the driver's connection, unless it is closed.
//
// The transaction's context may end meanwhile, and then database/sql closes conn beside
// us: Raw sees that conn is open; the other goroutine marks it as closed, closes the
// driver's connection and leaves nil in its place; Raw goes on with that nil and panics.
// Nothing was lent then, and conn is closed, as if it had been a moment before.
func lend(conn *sql.Conn, work func(driverConn any)) {
	lent := false
	defer func() {
		if lent {
			return
		}
		_ = recover()
	}()
	_ = conn.Raw(func(driverConn any) error {
		lent = true
		work(driverConn)
		return nil
	})
}

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
