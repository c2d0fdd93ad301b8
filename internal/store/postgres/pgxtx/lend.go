package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// lent is a connection of the application's pool for the time of one transaction. It is the driver's connection of a
// separate pool: database/sql and the driver would send a BEGIN without settings, which would then take another round
// trip, and a COMMIT whose notices nothing reads.
type lent struct {
	*stdlib.Conn
	pool        *sql.DB
	conn        *sql.Conn
	settings    []string // SET LOCAL statements
	traits      traits
	sent, begun time.Time // when the BEGIN was sent and answered; zero if it was not
	prepared    []*sql.Stmt
	later       later
}

// lend takes a connection out of the application's pool for a transaction with a bound and further settings. Closing it
// returns it. Its errors include ErrUnavailable.
func lend(ctx context.Context, pool *sql.DB, bound Bound, settings []string) (*sql.Conn, *lent, error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	l := &lent{pool: pool, conn: conn}
	err = conn.Raw(func(driverConn any) (err error) {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return ErrUnavailable
		}
		l.Conn = c
		l.traits, err = traitsOf(ctx, c.Conn(), bound)
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(ErrUnavailable, err, conn.Close())
	}
	if !l.traits.keepalive || bound != ByKeepalive {
		l.settings = bound.settings(ctx)
	}
	l.settings = append(l.settings, settings...)
	own := sql.OpenDB(connector{l})
	taken, err := own.Conn(ctx)
	// A connection in use outlives its pool, whose goroutine ends here. It is closed when the transaction has ended.
	_ = own.Close()
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return taken, l, nil
}

// connector gives a pool its only connection. It must not have the connection's methods, because database/sql closes a
// connector that has a method Close together with the pool.
type connector struct{ lent *lent }

// Connect implements driver.Connector.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.lent, nil }

// Driver implements driver.Connector.
func (c connector) Driver() driver.Driver { return nil }

// Close returns the connection to the application's pool. If it was closed inside its transaction, the server may not
// know that.
func (l *lent) Close() error {
	server := l.Conn.Conn().PgConn()
	if !l.begun.IsZero() && server.IsClosed() {
		lose(l.pool, session{pid: server.PID(), sent: l.sent, begun: l.begun})
	}
	for _, stmt := range l.prepared {
		_ = stmt.Close() // an error means that the connection is closed
	}
	return l.conn.Close()
}

// prepare prepares a statement until the connection is returned. It is one of the application's pool: GORM keeps
// prepared statements, and database/sql refuses statements of another pool.
func (l *lent) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	stmt, err := l.conn.PrepareContext(ctx, text)
	if err == nil {
		l.prepared = append(l.prepared, stmt)
	}
	return stmt, err
}

// BeginTx begins a transaction with its settings, in one round trip in every mode of pgx.
func (l *lent) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	begin, err := beginSQL(options)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	statements := append([]string{begin}, l.settings...)
	tx, err := l.Conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: strings.Join(statements, "; ")})
	if err != nil {
		return nil, err
	}
	l.sent, l.begun = sent, time.Now()
	return lentTx{l, ctx, tx}, nil
}

// lentTx ends with the context of its begin, as the driver's transactions do.
type lentTx struct {
	lent *lent
	ctx  context.Context
	tx   pgx.Tx
}

// Commit implements driver.Tx. Its errors include ErrUnconfirmed.
func (t lentTx) Commit() error {
	if t.lent.traits.bare {
		if ended, err := commit(t.ctx, t.lent.Conn.Conn()); ended {
			return t.lent.explain(err)
		}
	}
	return t.lent.explain(t.tx.Commit(t.ctx))
}

// Rollback implements driver.Tx.
func (t lentTx) Rollback() error { return t.tx.Rollback(t.ctx) }

func beginSQL(options driver.TxOptions) (string, error) {
	begin := "begin"
	switch level := sql.IsolationLevel(options.Isolation); level {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		begin += " isolation level " + strings.ToLower(level.String())
	default:
		return "", fmt.Errorf("unsupported isolation: %v", level)
	}
	if options.ReadOnly {
		begin += " read only"
	}
	return begin, nil
}

// traits are the properties of a connection that a transaction has to know. They are stored with the connection:
// reading its configuration copies that each time.
type traits struct {
	bare      bool // without a tracer, which should see all statements
	prepares  bool
	probed    bool // keepaliveSQL has run
	keepalive bool // and has set the session's keepalives
}

const traitsKey = "github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx.traits"

// traitsOf returns the traits of a connection on which a transaction with a bound is about to begin.
func traitsOf(ctx context.Context, c *pgx.Conn, bound Bound) (traits, error) {
	data := c.PgConn().CustomData()
	of, known := data[traitsKey].(traits)
	if known && (of.probed || bound != ByKeepalive) {
		return of, nil
	}
	if !known {
		config := c.Config()
		of.bare = config.Tracer == nil
		of.prepares = of.bare && config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
	}
	if bound == ByKeepalive && !of.probed {
		set, err := c.Exec(ctx, keepaliveSQL(c.PgConn().PID()))
		if err != nil {
			return of, fmt.Errorf("set the connection's keepalives: %w", err)
		}
		of.probed, of.keepalive = true, set.RowsAffected() > 0
	}
	data[traitsKey] = of
	return of, nil
}
