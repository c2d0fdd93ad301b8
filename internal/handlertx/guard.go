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

// Guard stands between a handler and its transaction and decides whether the transaction may be committed (contract
// 5.11). It works alike on every database: the dialect says what a failed statement does to its transaction, and how a
// statement is read.
//
// Statements that begin or end the transaction are refused. A handler's early commit is not undone with the rest, and
// in a shared transaction it would commit other handlers' writes.
//
// A swallowed SQL error is a failure of the attempt, unless the handler has rolled back to a savepoint before it. On
// PostgreSQL a failed statement aborts the transaction, and a cancelled one costs the connection. A handler that
// ignores the error cannot commit, but the commit's error may then look like a failure of the database. Other databases
// would commit the rest.
//
// A failure that has rolled back the whole transaction leaves a session that commits each further statement by itself.
// So the guard refuses everything from then on, as PostgreSQL does in an aborted transaction.
type Guard struct {
	pool    gorm.ConnPool // the transaction's, maybe with another guard
	db      func() (*sql.DB, error)
	dialect *dialect.Dialect
	timeout time.Duration // bounds each statement that the guard runs itself

	once  sync.Once
	relay *relay // made when it is needed

	// running is held while a statement runs whose failure may roll back the transaction, so that no other statement
	// runs between the failure and its refusal.
	running sync.Mutex

	mu      sync.Mutex
	sets    bool    // a statement may have changed settings of the transaction
	refused error   // a failure that no savepoint undoes; every further statement fails with it
	failed  error   // the error of the first statement that failed and was not undone
	undone  []error // errors of statements whose savepoint was rolled back to
	marks   []savepoint
	after   []func() // to be called after the transaction's commit
}

type savepoint struct {
	name   string
	failed error // Guard.failed when it was set
	after  int   // how many functions waited for the commit then
}

// Watch returns a session in tx's transaction, bound to ctx, and the guard that its statements pass. timeout bounds
// each statement that the guard runs itself.
func Watch(ctx context.Context, tx *gorm.DB, timeout time.Duration) (*gorm.DB, *Guard) {
	d, _ := dialects.Of(tx) // without one there is no inbox or marker store
	g := &Guard{pool: tx.Statement.ConnPool, db: tx.DB, dialect: d, timeout: timeout}
	session := tx.WithContext(ctx) // with a new statement: tx keeps its pool
	session.Statement.ConnPool = g
	return session, g
}

// Swallowed returns the failure that no savepoint has undone.
func (g *Guard) Swallowed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.refused != nil:
		return g.refused
	case g.failed != nil:
		return fmt.Errorf("handler swallowed an error of its transaction: %w", g.failed)
	}
	return nil
}

// Fault returns the error of a statement that failed because of the database, which is decides. It considers the first
// error that no savepoint has undone. If there is none, it considers errors that were undone and that err, the
// handler's error, wraps. It returns nil if none matches.
func (g *Guard) Fault(err error, is func(error) bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed != nil {
		if is(g.failed) {
			return g.failed
		}
		return nil
	}
	for _, undone := range g.undone {
		if errors.Is(err, undone) && is(undone) {
			return undone
		}
	}
	return nil
}

// Sets reports whether a statement may have changed settings for the rest of the transaction, as SET LOCAL does.
func (g *Guard) Sets() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sets
}

// ExecContext runs a statement and notes its error.
func (g *Guard) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	g.enter()
	defer g.leave()
	controls, err := g.admit(text)
	if err != nil {
		return nil, err
	}
	pool := g.pool
	if controls != nil {
		pool = unprepared(pool) // as GORM does: savepoints and several statements cannot be prepared everywhere
	}
	result, err := pool.ExecContext(ctx, text, args...)
	g.note(controls, err)
	return result, err
}

// QueryContext runs a query and notes its error, which may come with its rows.
func (g *Guard) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	rows, err := g.query(ctx, text, args)
	if err != nil || !g.outlivesFailures() {
		return rows, err
	}
	return g.relayed().rows(rows)
}

func (g *Guard) query(ctx context.Context, text string, args []any) (*sql.Rows, error) {
	g.enter()
	defer g.leave()
	controls, err := g.admit(text)
	if err != nil {
		return nil, err
	}
	rows, err := g.pool.QueryContext(ctx, text, args...)
	g.note(controls, err)
	return rows, err
}

// QueryRowContext is QueryContext for a single row.
func (g *Guard) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	if g.outlivesFailures() {
		return g.relayed().row(g.query(ctx, text, args))
	}
	controls, err := g.admit(text)
	if err != nil {
		return g.relayed().row(nil, err)
	}
	row := g.pool.QueryRowContext(ctx, text, args...)
	g.note(controls, row.Err())
	return row
}

// PrepareContext prepares a statement of the transaction itself, because GORM keeps it in a cache that outlives the
// transaction. If a handler runs it without GORM, nothing is noted.
func (g *Guard) PrepareContext(ctx context.Context, text string) (*sql.Stmt, error) {
	g.enter()
	defer g.leave()
	if _, err := g.admit(text); err != nil {
		return nil, err
	}
	stmt, err := g.pool.PrepareContext(ctx, text)
	g.note(nil, err)
	return stmt, err
}

// StmtContext returns a statement that runs the text of another one, possibly of another pool or transaction, through
// the guard. The method makes Guard a gorm.Tx: otherwise GORM's sessions with PrepareStmt would leave the transaction.
func (g *Guard) StmtContext(_ context.Context, stmt *sql.Stmt) *sql.Stmt {
	return g.relayed().statement(textOf(stmt))
}

func (g *Guard) relayed() *relay {
	g.once.Do(func() { g.relay = newRelay(g) })
	return g.relay
}

// Commit is refused and fails the attempt: the transaction belongs to the inbox. Because Commit and Rollback exist,
// GORM takes this for a transaction and turns nested ones into savepoints.
func (g *Guard) Commit() error { return g.refuseBoundary("COMMIT") }

// Rollback is refused, see Commit.
func (g *Guard) Rollback() error { return g.refuseBoundary("ROLLBACK") }

// GetDBConn lets gorm.DB.DB find the pool.
func (g *Guard) GetDBConn() (*sql.DB, error) { return g.db() }

// AfterCommit calls f after the commit of the handler's transaction that tx is a session of. It does not call f if a
// savepoint that was set before is rolled back to. It reports false and does nothing if tx is in no transaction that a
// handler runs in.
func AfterCommit(tx *gorm.DB, f func()) bool {
	g, ok := unprepared(tx.Statement.ConnPool).(*Guard)
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.after = append(g.after, f)
	return true
}

// Failed notes a failure in the handler's transaction that tx is a session of, although its statements were taken back:
// a handler that swallows it commits nothing. It does nothing if tx is in no transaction that a handler runs in.
func Failed(tx *gorm.DB, failure error) {
	g, ok := unprepared(tx.Statement.ConnPool).(*Guard)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = failure
	}
}

// Committed calls the functions that wait for the transaction's commit.
func (g *Guard) Committed() {
	g.mu.Lock()
	after := g.after
	g.after = nil
	g.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// outlivesFailures reports whether the session continues after a failed statement, in the transaction or without it.
// Where it does not, the server itself refuses to commit later statements, and the handler's reads need no relay.
func (g *Guard) outlivesFailures() bool { return g.dialect.RolledBack != nil }

func (g *Guard) enter() {
	if g.outlivesFailures() {
		g.running.Lock()
	}
}

func (g *Guard) leave() {
	if g.outlivesFailures() {
		g.running.Unlock()
	}
}

// admit returns what a statement's text does to the transaction. It refuses a text that begins or ends one, and any
// text once the transaction cannot be committed.
func (g *Guard) admit(text string) ([]txcontrol.Control, error) {
	controls := g.dialect.Syntax.Find(text)
	sets := false
	for _, c := range controls {
		if c.Kind == txcontrol.Boundary {
			return nil, g.refuseBoundary(c.Words)
		}
		sets = sets || c.Kind == txcontrol.Setting
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sets = g.sets || sets
	return controls, g.refused
}

func (g *Guard) refuseBoundary(statement string) error {
	return g.refuse(fmt.Errorf("%w: a handler must not begin or end the transaction it runs in: %s is refused, use a savepoint",
		gorm.ErrInvalidTransaction, statement))
}

// refuse fails the attempt, even if the handler ignores the error.
func (g *Guard) refuse(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused == nil {
		g.refused = err
	}
	return err
}

// note records what a statement did with savepoints, or its error.
func (g *Guard) note(controls []txcontrol.Control, err error) {
	if err != nil && g.rolledBack(err) {
		_ = g.refuse(fmt.Errorf("the handler's transaction was rolled back by a statement that failed: %w", err))
	}
	if err == nil && controls == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		if g.failed == nil {
			g.failed = err
		}
		return
	}
	for _, c := range controls {
		g.noteSavepoint(c)
	}
}

// rolledBack reports whether a failure has rolled back the whole transaction. The statement that finds out has its own
// context, because the failed statement's may have ended. Without an answer in time the transaction counts as rolled
// back. An inner guard has found out before, and refuses further statements.
func (g *Guard) rolledBack(failure error) bool {
	pool := unprepared(g.pool)
	if _, guarded := pool.(*Guard); guarded || !g.outlivesFailures() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	return g.dialect.RolledBack(failure, func(statement string) error {
		_, err := pool.ExecContext(ctx, statement)
		return err
	}) || ctx.Err() != nil
}

// unprepared returns a transaction without GORM's cache of prepared statements around it.
func unprepared(pool gorm.ConnPool) gorm.ConnPool {
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		return prepared.Tx
	}
	return pool
}

// noteSavepoint records a statement about savepoints. Several savepoints may have one name: the newest one counts.
// Releasing a savepoint also removes those set after it.
func (g *Guard) noteSavepoint(c txcontrol.Control) {
	i := g.newestSavepoint(c.Name)
	switch {
	case c.Kind == txcontrol.Savepoint:
		g.marks = append(g.marks, savepoint{c.Name, g.failed, len(g.after)})
	case i < 0:
	case c.Kind == txcontrol.Release:
		g.marks = g.marks[:i]
	case c.Kind == txcontrol.RollbackTo:
		if g.failed != nil && g.marks[i].failed == nil {
			g.undone = append(g.undone[max(0, len(g.undone)-maxUndone+1):], g.failed)
		}
		g.failed, g.after, g.marks = g.marks[i].failed, g.after[:g.marks[i].after], g.marks[:i+1]
	}
}

// maxUndone bounds how many errors of undone statements are kept. A handler that retries in a loop returns one of the
// last.
const maxUndone = 16

func (g *Guard) newestSavepoint(name string) int {
	for i := len(g.marks) - 1; i >= 0; i-- {
		if strings.EqualFold(g.marks[i].name, name) {
			return i
		}
	}
	return -1
}
