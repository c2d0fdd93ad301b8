package handlertx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// overPgx makes transactions of db begin as a pipedTx wherever pgx is available. Then the
// statements of SteerLater are sent together with the statement that follows, which saves a round
// trip each time. And a commit fails (pgxtx.ErrUnconfirmed) if PostgreSQL's synchronous standby has
// not confirmed it. On any driver the server notices if the client vanishes.
func overPgx(db *gorm.DB) *gorm.DB {
	pool, ok := db.Statement.ConnPool.(*sql.DB)
	db = pgxtx.Session(db, pgxtx.ByKeepalive)
	if beginner, bounded := db.Statement.ConnPool.(gorm.ConnPoolBeginner); ok && bounded {
		db.Statement.ConnPool = piping{pool, beginner}
	}
	return db
}

// piping is a pool that begins a pipedTx where it can.
type piping struct {
	*sql.DB
	bounded gorm.ConnPoolBeginner
}

// BeginTx implements gorm.ConnPoolBeginner.
func (p piping) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	begun, err := p.bounded.BeginTx(ctx, options)
	if tx, ok := begun.(*pgxtx.Tx); ok && err == nil {
		return &pipedTx{Tx: tx, pool: p.DB}, nil
	}
	return begun, err
}

// pipedTx is a transaction that delays steering statements until its next statement.
type pipedTx struct {
	*pgxtx.Tx
	pool *sql.DB

	// mu is held while pending statements are being sent. Without it, another statement of the
	// handler's, from a goroutine of its own, could overtake a savepoint that must precede it.
	mu      sync.Mutex
	pending []string
	failed  error
}

// SteerLater is Steer, executed no later than right before tx's next statement. If the server
// refuses it, the statement that was sent with it fails too, and Steered returns the error.
func SteerLater(ctx context.Context, tx *gorm.DB, statements ...string) error {
	t, ok := tx.Statement.ConnPool.(*pipedTx)
	if !ok {
		return Steer(ctx, tx, strings.Join(statements, "; "))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, statements...)
	return nil
}

// Steered returns the server's error for the statements of SteerLater. If they were to set a
// savepoint, an older one of that name may still exist.
func Steered(tx *gorm.DB) error {
	t, ok := tx.Statement.ConnPool.(*pipedTx)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// ExecContext runs a statement, together with what is pending.
func (t *pipedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pending) == 0 || !t.Prepares() || !pipeable(args) {
		if err := t.flush(ctx); err != nil {
			return nil, err
		}
		return t.Tx.ExecContext(ctx, query, args...)
	}
	var affected int64
	err := t.Do(ctx, func(c *pgx.Conn) error {
		var ran bool
		var err error
		affected, ran, err = pgxtx.ExecAfter(ctx, c, t.pending, query, args)
		t.steered(ran, err)
		return err
	})
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(affected), nil
}

// steered clears the pending statements if they have run or the server has refused them. Otherwise
// they stay pending: they did not reach the server, or the connection is lost.
func (t *pipedTx) steered(ran bool, err error) {
	var refused *pgconn.PgError
	switch {
	case ran:
	case errors.As(err, &refused):
		t.failed = fmt.Errorf("%s: %w", strings.ToLower(strings.Join(t.pending, "; ")), err)
	default:
		return
	}
	t.pending = t.pending[:0]
}

// pipeable reports whether the arguments are those of a prepared statement and none that
// database/sql or pgx treats specially. A text without arguments may consist of several statements,
// so it is not.
func pipeable(args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case sql.NamedArg, sql.Out, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
			return false
		}
	}
	return len(args) > 0
}

// flush sends what is pending by itself.
func (t *pipedTx) flush(ctx context.Context) error {
	if len(t.pending) == 0 {
		return nil
	}
	_, err := t.Tx.ExecContext(ctx, strings.Join(t.pending, "; "))
	t.steered(err == nil, err)
	return err
}

func (t *pipedTx) flushed(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flush(ctx)
}

// QueryContext runs a query after what is pending.
func (t *pipedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.flushed(ctx); err != nil {
		return nil, err
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query after what is pending, or not at all if that fails. A Row cannot be
// made with an error of ours, so it gets the error of a context that has ended.
func (t *pipedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if t.flushed(ctx) != nil {
		ended, end := context.WithCancel(ctx)
		end()
		ctx = ended
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement after what is pending.
func (t *pipedTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.flushed(ctx); err != nil {
		return nil, err
	}
	return t.Tx.PrepareContext(ctx, query)
}

// StmtContext binds a prepared statement after what is pending. It prepares the statement again: for
// database/sql, the transaction is one of another pool. If any of this fails, so does each use of the
// statement.
func (t *pipedTx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	text, err := textOf(stmt)
	var bound *sql.Stmt
	if err == nil {
		err = t.flushed(ctx)
	}
	if err == nil {
		bound, err = t.Tx.PrepareAgain(ctx, text)
	}
	if err != nil {
		bound, _ = newRelay(nil).statement(&relayedStmt{err: err}) // preparing it cannot fail
	}
	return bound
}

// GetDBConn lets gorm.DB.DB find the pool.
func (t *pipedTx) GetDBConn() (*sql.DB, error) { return t.pool, nil }
