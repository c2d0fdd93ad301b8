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

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// WatchedTx makes a swallowed SQL error a failure of the attempt, on every database (contract
// 5.11).
//
// On PostgreSQL a failed statement aborts the transaction, and a cancelled one costs the
// connection. A handler that ignores the error cannot commit, but the commit's error may then look
// like a failure of the database. SQLite would commit the rest, and a handler tested on SQLite
// would fail in production. An error inside a savepoint that is rolled back to does not count.
//
// WatchedTx refuses statements that begin or end the transaction. What a handler commits early is
// not undone with the rest, and in a shared transaction it would commit what others have written.
type WatchedTx struct {
	gorm.ConnPool // the transaction's own
	pool          func() (*sql.DB, error)
	dialect       *dialect.Dialect
	timeout       time.Duration // of the watch's own statements

	once  sync.Once
	relay *relay // made when it is needed

	mu      sync.Mutex
	sets    bool    // a statement may have changed settings of the transaction
	refused error   // what no savepoint undoes
	failed  error   // the error of the first statement that failed and was not undone
	undone  []error // errors of statements whose savepoint was rolled back to
	marks   []savepoint
	after   []func() // to be called after the transaction's commit
}

type savepoint struct {
	name   string
	failed error // WatchedTx.failed when it was set
	after  int   // how many functions waited for the commit then
}

// Watch returns a session in tx's transaction, bound to ctx, whose errors are noted. A statement of
// the watch's own may take as long as timeout.
func Watch(ctx context.Context, tx *gorm.DB, timeout time.Duration) (*gorm.DB, *WatchedTx) {
	d, _ := dialects.Of(tx) // without one there is no inbox or marker store
	w := &WatchedTx{ConnPool: tx.Statement.ConnPool, pool: tx.DB, dialect: d, timeout: timeout}
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

// Fault returns the error of a statement that failed because of the database, which is decides. It
// considers the first error that no savepoint has undone. If there is none, it considers errors
// that were undone and that err, the handler's error, wraps. It returns nil if none matches.
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

// maxUndone bounds how many errors of undone statements are kept. A handler that retries in a loop
// returns one of the last.
const maxUndone = 16

// ExecContext runs a statement and notes its error.
func (w *WatchedTx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	controls, err := w.admit(text)
	if err != nil {
		return nil, err
	}
	result, err := w.ConnPool.ExecContext(ctx, text, args...)
	w.note(controls, err)
	return result, err
}

// QueryContext runs a query and notes its error, which may come with its rows.
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

// PrepareContext prepares a statement of the transaction itself, because GORM keeps it in a cache
// that outlives the transaction. StmtContext watches what the statement does. If a handler runs it
// without GORM, it is not watched.
func (w *WatchedTx) PrepareContext(ctx context.Context, text string) (*sql.Stmt, error) {
	if _, err := w.admit(text); err != nil {
		return nil, err
	}
	stmt, err := w.ConnPool.PrepareContext(ctx, text)
	w.note(nil, err)
	return stmt, err
}

// StmtContext binds a statement, possibly of another pool or transaction, to this one and watches
// it. The method makes WatchedTx a gorm.Tx: otherwise GORM's sessions with PrepareStmt would leave
// the transaction.
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

// swallows reports whether the database continues a transaction in which a statement has failed.
// PostgreSQL does not, so there the handler's reads need not go through the relay.
func (w *WatchedTx) swallows() bool { return w.dialect.GoesOn }

// Commit is refused and fails the attempt: the transaction belongs to the inbox. Because Commit and
// Rollback exist, GORM takes this for a transaction and turns nested ones into savepoints.
func (w *WatchedTx) Commit() error { return w.refuse("COMMIT") }

// Rollback is refused, see Commit.
func (w *WatchedTx) Rollback() error { return w.refuse("ROLLBACK") }

// GetDBConn lets gorm.DB.DB find the pool.
func (w *WatchedTx) GetDBConn() (*sql.DB, error) { return w.pool() }

// admit returns what a text does with savepoints. It refuses one that begins or ends a transaction.
func (w *WatchedTx) admit(text string) ([]txcontrol.Control, error) {
	controls := w.dialect.Syntax.Find(text)
	for _, c := range controls {
		if c.Kind == txcontrol.Boundary {
			return nil, w.refuse(c.Words)
		}
		if c.Kind == txcontrol.Setting {
			w.mu.Lock()
			w.sets = true
			w.mu.Unlock()
		}
	}
	return controls, nil
}

// Sets reports whether a statement may have changed settings for the rest of the transaction, as SET
// LOCAL does. SQLite has no settings that end with the transaction.
func (w *WatchedTx) Sets() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sets
}

func (w *WatchedTx) refuse(statement string) error {
	err := fmt.Errorf("%w: a handler must not begin or end the transaction it runs in: %s is refused, use a savepoint",
		gorm.ErrInvalidTransaction, statement)
	w.fail(err)
	return err
}

// fail fails the attempt permanently.
func (w *WatchedTx) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == nil {
		w.refused = err
	}
}

// note records what a statement did with savepoints, or its error.
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

// rolledBack reports whether SQLite has rolled back the whole transaction, as it does for ON
// CONFLICT ROLLBACK, RAISE(ROLLBACK) or a full disk. What the handler writes afterwards would be
// committed at once, by itself. rolledBack sends BEGIN, which SQLite refuses within a transaction.
// If the transaction is gone, BEGIN begins another one, which the end of the attempt undoes. BEGIN
// has its own context, because that of the failed statement may have ended. Without an answer in
// time the transaction counts as rolled back.
func (w *WatchedTx) rolledBack() bool {
	if !w.swallows() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
	defer cancel()
	_, err := unwatched(w.ConnPool).ExecContext(ctx, "BEGIN")
	return err == nil || ctx.Err() != nil
}

// unwatched returns the transaction below other watches and GORM's prepared statements.
func unwatched(pool gorm.ConnPool) gorm.ConnPool {
	switch pool := pool.(type) {
	case *gorm.PreparedStmtTX:
		return unwatched(pool.Tx)
	case *WatchedTx:
		return unwatched(pool.ConnPool)
	}
	return pool
}

// steered records a statement about savepoints. Several savepoints may have one name: the newest
// one counts. Releasing a savepoint also removes those set after it.
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
