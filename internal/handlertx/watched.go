package handlertx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// WatchedTx makes a swallowed SQL error a failure (contract 5.11), on every
// database alike. On PostgreSQL a failed statement aborts the transaction, and
// a cancelled one costs the connection: a handler that ignores the error cannot
// commit, but what the commit says then may look like the database's trouble.
// SQLite would commit the rest, and a handler tested on SQLite would fail in
// production. An error inside a savepoint that is rolled back to is forgiven.
//
// It refuses statements that begin or end the transaction: what a handler
// commits early is not undone with the rest, and would commit what others have
// written in a shared transaction.
type WatchedTx struct {
	gorm.ConnPool // the transaction's own
	pool          func() (*sql.DB, error)
	dialect       txcontrol.Dialect
	timeout       time.Duration // of the watch's own statements

	once  sync.Once
	relay *relay // made when it is needed

	mu      sync.Mutex
	refused error   // what no savepoint undoes
	failed  error   // the first statement's that failed and was not undone
	undone  []error // of statements whose savepoint was rolled back to
	marks   []savepoint
	after   []func() // to be called once the transaction is committed
}

type savepoint struct {
	name   string
	failed error // when it was set
	after  int   // how many functions waited for the commit then
}

// Watch returns a session in tx's transaction, bound to ctx, whose failures are
// noted. A statement of the watch's own may take as long as timeout.
func Watch(ctx context.Context, tx *gorm.DB, timeout time.Duration) (*gorm.DB, *WatchedTx) {
	w := &WatchedTx{ConnPool: tx.Statement.ConnPool, pool: tx.DB, dialect: txcontrol.SQLite, timeout: timeout}
	if tx.Dialector.Name() == "postgres" {
		w.dialect = txcontrol.PostgreSQL
	}
	session := tx.WithContext(ctx) // with a statement of its own: tx keeps its pool
	session.Statement.ConnPool = w
	return session, w
}

// Swallowed returns the failure that no savepoint has undone.
func (w *WatchedTx) Swallowed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.refused != nil:
		return w.refused
	case w.failed != nil:
		return fmt.Errorf("handler swallowed an error of its transaction: %w", w.failed)
	}
	return nil
}

// Fault returns the failure of a statement for which the database is to blame, as
// is says: the first one that no savepoint has undone, else one that was undone and
// that err, the handler's, wraps. It is nil if there is none.
func (w *WatchedTx) Fault(err error, is func(error) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		if is(w.failed) {
			return w.failed
		}
		return nil
	}
	for _, undone := range w.undone {
		if errors.Is(err, undone) && is(undone) {
			return undone
		}
	}
	return nil
}

// maxUndone bounds the failures that are kept of statements that were undone. A
// handler that tries again in a loop returns the last of them.
const maxUndone = 16

// ExecContext runs a statement and notes its failure.
func (w *WatchedTx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	controls, err := w.admit(text)
	if err != nil {
		return nil, err
	}
	result, err := w.ConnPool.ExecContext(ctx, text, args...)
	w.note(controls, err)
	return result, err
}

// QueryContext runs a query and notes its failure, which may come with its rows.
func (w *WatchedTx) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	controls, err := w.admit(text)
	if err != nil {
		return nil, err
	}
	if !w.swallows() {
		rows, err := w.ConnPool.QueryContext(ctx, text, args...)
		w.note(controls, err)
		return rows, err
	}
	return w.relayed().query(&query{ctx: ctx, text: text, args: args, controls: controls})
}

// QueryRowContext is QueryContext for a single row.
func (w *WatchedTx) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	controls, err := w.admit(text)
	if err == nil && !w.swallows() {
		row := w.ConnPool.QueryRowContext(ctx, text, args...)
		w.note(controls, row.Err())
		return row
	}
	return w.relayed().queryRow(&query{ctx: ctx, text: text, args: args, controls: controls, err: err})
}

// PrepareContext prepares a statement of the transaction itself: GORM keeps it in a
// cache that outlives the transaction. StmtContext watches what it does; a handler
// that runs it without GORM is not watched.
func (w *WatchedTx) PrepareContext(ctx context.Context, text string) (*sql.Stmt, error) {
	if _, err := w.admit(text); err != nil {
		return nil, err
	}
	stmt, err := w.ConnPool.PrepareContext(ctx, text)
	w.note(nil, err)
	return stmt, err
}

// StmtContext binds a statement, which may be of another pool or transaction, to
// this one and watches it. With it this is a gorm.Tx: without, GORM's sessions
// with PrepareStmt would leave the transaction.
func (w *WatchedTx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	relayed := &relayedStmt{}
	text, err := textOf(stmt)
	if err == nil {
		relayed.controls, err = w.admit(text)
	}
	if tx, ok := w.ConnPool.(gorm.Tx); err == nil && ok {
		relayed.stmt = tx.StmtContext(ctx, stmt)
		if !w.swallows() {
			return relayed.stmt
		}
	} else if err == nil {
		err = fmt.Errorf("%w: %T binds no prepared statements", gorm.ErrInvalidTransaction, w.ConnPool)
	}
	relayed.err = err
	bound, _ := w.relayed().statement(relayed) // preparing it cannot fail
	return bound
}

func (w *WatchedTx) relayed() *relay {
	w.once.Do(func() { w.relay = newRelay(w) })
	return w.relay
}

// swallows reports whether the database goes on with a transaction in which a
// statement has failed. On PostgreSQL, which does not, the handler's reads are
// spared the way through the relay.
func (w *WatchedTx) swallows() bool { return w.dialect != txcontrol.PostgreSQL }

// Commit is refused and fails the attempt: the transaction is the inbox's.
// With Rollback it tells GORM that this is a transaction, so that nested ones
// become savepoints.
func (w *WatchedTx) Commit() error { return w.refuse("COMMIT") }

// Rollback is refused, see Commit.
func (w *WatchedTx) Rollback() error { return w.refuse("ROLLBACK") }

// GetDBConn lets gorm.DB.DB find the pool.
func (w *WatchedTx) GetDBConn() (*sql.DB, error) { return w.pool() }

// admit returns what a text does about savepoints, and refuses one that begins or
// ends a transaction.
func (w *WatchedTx) admit(text string) ([]txcontrol.Control, error) {
	controls := txcontrol.Find(text, w.dialect)
	for _, c := range controls {
		if c.Kind == txcontrol.Boundary {
			return nil, w.refuse(c.Words)
		}
	}
	return controls, nil
}

func (w *WatchedTx) refuse(statement string) error {
	err := fmt.Errorf("%w: a handler must not begin or end the transaction it runs in: %s is refused, use a savepoint",
		gorm.ErrInvalidTransaction, statement)
	w.fail(err)
	return err
}

// fail fails the attempt for good.
func (w *WatchedTx) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == nil {
		w.refused = err
	}
}

// note follows the database in what a statement did about savepoints, or its
// failure.
func (w *WatchedTx) note(controls []txcontrol.Control, err error) {
	if err != nil && w.rolledBack() {
		w.fail(fmt.Errorf("the handler's transaction was rolled back by a statement that failed: %w", err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.failed == nil {
			w.failed = err
		}
		return
	}
	for _, c := range controls {
		w.steered(c)
	}
}

// rolledBack reports whether SQLite has rolled back the whole transaction, as it does
// for ON CONFLICT ROLLBACK, RAISE(ROLLBACK), a full disk: what the handler goes on
// to write would then be committed at once, by itself. BEGIN, which is refused
// within a transaction, begins another one then, for the attempt's end to undo.
// The context of the statement that failed may have ended, so BEGIN has its own.
// Without an answer in time the transaction counts as rolled back.
func (w *WatchedTx) rolledBack() bool {
	if !w.swallows() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
	defer cancel()
	_, err := unwatched(w.ConnPool).ExecContext(ctx, "BEGIN")
	return err == nil || ctx.Err() != nil
}

// unwatched is the transaction below other watches and GORM's prepared statements.
func unwatched(pool gorm.ConnPool) gorm.ConnPool {
	switch pool := pool.(type) {
	case *gorm.PreparedStmtTX:
		return unwatched(pool.Tx)
	case *WatchedTx:
		return unwatched(pool.ConnPool)
	}
	return pool
}

// steered follows a statement about savepoints, of which several may have one
// name: the newest counts, and goes with those set after it when it is released.
func (w *WatchedTx) steered(c txcontrol.Control) {
	i := w.newest(c.Name)
	switch {
	case c.Kind == txcontrol.Savepoint:
		w.marks = append(w.marks, savepoint{c.Name, w.failed, len(w.after)})
	case i < 0:
	case c.Kind == txcontrol.Release:
		w.marks = w.marks[:i]
	case c.Kind == txcontrol.RollbackTo:
		if w.failed != nil && w.marks[i].failed == nil {
			w.undone = append(w.undone[max(0, len(w.undone)-maxUndone+1):], w.failed)
		}
		w.failed, w.after, w.marks = w.marks[i].failed, w.after[:w.marks[i].after], w.marks[:i+1]
	}
}

func (w *WatchedTx) newest(name string) int {
	for i := len(w.marks) - 1; i >= 0; i-- {
		if strings.EqualFold(w.marks[i].name, name) {
			return i
		}
	}
	return -1
}
