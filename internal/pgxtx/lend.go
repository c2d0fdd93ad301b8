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

// lent is a connection of the application's pool for the time of one transaction. It is the driver's
// connection of a pool of its own: database/sql and the driver would send a BEGIN without settings,
// which would then take another round trip.
type lent struct {
	*stdlib.Conn
	pool        *sql.DB
	conn        *sql.Conn
	settings    string // statements
	traits      traits
	sent, begun time.Time // when the BEGIN was sent and answered; zero if it was not
	prepared    []*sql.Stmt
}

// lend takes a connection out of the application's pool. Closing it returns it. Its errors include
// ErrUnavailable.
func lend(ctx context.Context, pool *sql.DB, settings string) (*sql.Conn, *lent, error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	l := &lent{pool: pool, conn: conn, settings: settings}
	if err := conn.Raw(l.take); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	own := sql.OpenDB(connector{l})
	taken, err := own.Conn(ctx)
	// A connection in use outlives its pool, whose goroutine ends here. It is closed when the
	// transaction has ended.
	_ = own.Close()
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return taken, l, nil
}

func (l *lent) take(driverConn any) error {
	c, ok := driverConn.(*stdlib.Conn)
	if !ok {
		return ErrUnavailable
	}
	l.Conn, l.traits = c, traitsOf(c.Conn())
	return nil
}

// connector gives a pool its only connection. It must not have the connection's methods, because
// database/sql closes a connector that has a method Close together with the pool.
type connector struct{ lent *lent }

// Connect implements driver.Connector.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.lent, nil }

// Driver implements driver.Connector.
func (c connector) Driver() driver.Driver { return nil }

// Close returns the connection to the application's pool. If it was closed inside its transaction,
// the server may not know that.
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

// prepare prepares a statement until the connection is returned. It is one of the application's pool:
// GORM keeps prepared statements, and database/sql refuses those of another pool.
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
	settings := l.settings
	if l.traits.unacknowledged {
		settings = strings.ReplaceAll(settings, "; "+acknowledgeSQL, "")
	}
	sent := time.Now()
	tx, err := l.Conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: begin + "; " + settings})
	if err != nil {
		return nil, err
	}
	l.sent, l.begun = sent, time.Now()
	l.learn(ctx)
	return lentTx{ctx, tx}, nil
}

// learn finds out, once for each connection, whether the server's system has the setting of
// acknowledgeSQL. One without it, such as macOS, would write to its log for each transaction.
func (l *lent) learn(ctx context.Context) {
	if l.traits.learned || !strings.Contains(l.settings, acknowledgeSQL) {
		return
	}
	c := l.Conn.Conn()
	var value string
	if c.QueryRow(ctx, "show tcp_user_timeout", pgx.QueryExecModeSimpleProtocol).Scan(&value) == nil {
		l.traits.learned, l.traits.unacknowledged = true, value == "0"
		c.PgConn().CustomData()[traitsKey] = l.traits
	}
}

// lentTx ends with the context of its begin, as the driver's own transactions do.
type lentTx struct {
	ctx context.Context
	tx  pgx.Tx
}

// Commit implements driver.Tx.
func (t lentTx) Commit() error { return t.tx.Commit(t.ctx) }

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

// traits are what a transaction has to know of its connection. They never change, so they are stored
// with the connection: reading its configuration copies that each time.
type traits struct {
	bare     bool // without a tracer, which should see all statements
	prepares bool
	// unacknowledged says that the server ignores tcp_user_timeout, once that has been learned.
	learned, unacknowledged bool
}

const traitsKey = "github.com/gorm-inbox/inbox/internal/pgxtx.traits"

func traitsOf(c *pgx.Conn) traits {
	data := c.PgConn().CustomData()
	of, ok := data[traitsKey].(traits)
	if !ok {
		config := c.Config()
		of.bare = config.Tracer == nil
		of.prepares = of.bare && config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
		data[traitsKey] = of
	}
	return of
}
