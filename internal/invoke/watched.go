package invoke

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"

	"gorm.io/gorm"
)

// WatchedTx makes a swallowed SQL error a failure (contract 5.11), on every
// database alike. On PostgreSQL a failed statement aborts the transaction, and
// a cancelled one costs the connection: a handler that ignores the error cannot
// commit, but what the commit says then may look like the database's trouble.
// SQLite would commit the rest, and a handler tested on SQLite would fail in
// production. An error inside a savepoint that is rolled back to is forgiven.
type WatchedTx struct {
	gorm.ConnPool // the transaction's own
	pool          func() (*sql.DB, error)

	mu     sync.Mutex
	failed error // the first statement's that failed and was not undone
	marks  []savepoint
}

type savepoint struct {
	name   string
	failed error // when it was set
}

// Watch returns a session in tx's transaction, bound to ctx, whose failures are
// noted.
func Watch(ctx context.Context, tx *gorm.DB) (*gorm.DB, *WatchedTx) {
	w := &WatchedTx{ConnPool: tx.Statement.ConnPool, pool: tx.DB}
	session := tx.WithContext(ctx) // with a statement of its own: tx keeps its pool
	session.Statement.ConnPool = w
	return session, w
}

// Swallowed returns the failure that no savepoint has undone.
func (w *WatchedTx) Swallowed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		return nil
	}
	return fmt.Errorf("handler swallowed an error of its transaction: %w", w.failed)
}

// ExecContext runs a statement and notes its failure.
func (w *WatchedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := w.ConnPool.ExecContext(ctx, query, args...)
	w.note(query, err)
	return result, err
}

// QueryContext runs a query and notes its failure.
func (w *WatchedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := w.ConnPool.QueryContext(ctx, query, args...)
	w.note(query, err)
	return rows, err
}

// Commit is refused and fails the attempt: the transaction is the inbox's.
// With Rollback it tells GORM that this is a transaction, so that nested ones
// become savepoints.
func (w *WatchedTx) Commit() error { return w.refuse("commit") }

// Rollback is refused, see Commit.
func (w *WatchedTx) Rollback() error { return w.refuse("roll back") }

func (w *WatchedTx) refuse(what string) error {
	err := fmt.Errorf("%w: a handler must not %s the transaction it runs in", gorm.ErrInvalidTransaction, what)
	w.note("", err)
	return err
}

// GetDBConn lets gorm.DB.DB find the pool.
func (w *WatchedTx) GetDBConn() (*sql.DB, error) { return w.pool() }

func (w *WatchedTx) note(query string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.failed == nil {
			w.failed = err
		}
		return
	}
	switch first, _, _ := strings.Cut(strings.TrimSpace(query), " "); strings.ToUpper(first) {
	case "SAVEPOINT", "ROLLBACK", "RELEASE":
		for _, statement := range strings.Split(query, ";") {
			w.steered(strings.Fields(statement))
		}
	}
}

// steered follows the database in what it does about savepoints, of which several
// may have one name: the newest counts, and goes with those set after it when it
// is released.
func (w *WatchedTx) steered(words []string) {
	if len(words) < 2 {
		return
	}
	name := words[len(words)-1]
	switch {
	case strings.EqualFold(words[0], "SAVEPOINT"):
		w.marks = append(w.marks, savepoint{name, w.failed})
	case strings.EqualFold(words[0], "RELEASE"):
		if i := w.newest(name); i >= 0 {
			w.marks = w.marks[:i]
		}
	case strings.EqualFold(words[0], "ROLLBACK") && strings.EqualFold(words[1], "TO"):
		if i := w.newest(name); i >= 0 {
			w.failed, w.marks = w.marks[i].failed, w.marks[:i+1]
		}
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
