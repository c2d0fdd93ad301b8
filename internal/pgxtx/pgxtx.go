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
	conn *sql.Conn
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
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &Tx{Tx: tx, conn: conn}, nil
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
	_ = t.conn.Close() // an error says that it is closed already
	return err
}

const idle = 'I' // as PostgreSQL says that there is no transaction

// Do calls work with the connection, beside nobody. Once the transaction has
// ended it fails with sql.ErrTxDone: the connection may still be there, because
// database/sql undoes a transaction as soon as its context ends, and whoever has
// not noticed yet would write outside of any transaction.
func (t *Tx) Do(work func(*pgx.Conn) error) error {
	err := t.conn.Raw(func(driverConn any) error {
		c := driverConn.(*stdlib.Conn).Conn()
		if c.PgConn().TxStatus() == idle {
			return sql.ErrTxDone
		}
		return work(c)
	})
	if errors.Is(err, sql.ErrConnDone) {
		return sql.ErrTxDone
	}
	return err
}
