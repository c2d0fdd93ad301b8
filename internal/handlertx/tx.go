// Package handlertx is the transaction that handlers run in: how it begins and ends, the guard that notes SQL errors
// which a handler swallows and refuses statements which would end the transaction, its savepoints, and the functions
// that wait for its commit.
package handlertx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// Tx is a transaction that handlers run in. It is used by one goroutine.
//
// It does not end with the context of an attempt. A handler that returns nil in spite of a cancelled context has
// completed, so its commit must still be possible. Only the inbox's statements in it have deadlines.
type Tx struct {
	// Ctx ends when one of the inbox's steps takes too long, and with the transaction.
	Ctx context.Context
	// DB is the session in the transaction.
	DB *gorm.DB

	dialect *dialect.Dialect
	cancel  context.CancelFunc
	release func() // gives the connection back to the pool's quota
	timeout time.Duration
	ended   bool
}

// Begin begins a transaction. It waits until handlers' transactions may hold one more connection of the pool, and
// returns ErrInterrupted if ctx ends before that. timeout bounds each of the inbox's steps in the transaction, and its
// begin.
func Begin(ctx context.Context, db *gorm.DB, timeout time.Duration, isolation sql.IsolationLevel) (*Tx, error) {
	return begin(ctx, context.WithoutCancel(ctx), db, timeout, isolation)
}

// BeginUntil is Begin for callers that cannot wait any longer once ctx has ended. Once begun, the transaction does not
// end with ctx.
func BeginUntil(ctx context.Context, db *gorm.DB, timeout time.Duration, isolation sql.IsolationLevel) (*Tx, error) {
	return begin(ctx, ctx, db, timeout, isolation)
}

// begin waits for a connection until waiting ends, and for the transaction until ctx does.
func begin(
	waiting, ctx context.Context, db *gorm.DB, timeout time.Duration, isolation sql.IsolationLevel,
) (t *Tx, err error) {
	release, err := quotaOf(db).take(waiting)
	if err != nil {
		return nil, err
	}
	defer func() {
		if t == nil { // also after a panic of the driver
			release()
		}
	}()
	begun := &Tx{release: release, timeout: timeout}
	if err := begun.begin(ctx, db, isolation); err != nil {
		return nil, err
	}
	return begun, nil
}

func (t *Tx) begin(ctx context.Context, db *gorm.DB, isolation sql.IsolationLevel) error {
	var err error
	if t.dialect, err = dialects.Of(db); err != nil {
		return err
	}
	t.Ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	t.DB = pgxtx.Session(db.Session(&gorm.Session{NewDB: true, Context: t.Ctx}), pgxtx.ByKeepalive)
	detach := context.AfterFunc(ctx, t.cancel)
	if isolation == sql.LevelDefault {
		isolation = t.dialect.Stated
	}
	err = t.Within(func() error { t.DB = t.DB.Begin(&sql.TxOptions{Isolation: isolation}); return t.DB.Error })
	if !detach() && err == nil {
		err = ctx.Err() // it was begun nevertheless; database/sql rolls it back because its own context has ended
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if err != nil {
		t.cancel()
		return fmt.Errorf("begin handler transaction: %w", err)
	}
	return nil
}

// Explain adds to the error of a statement why PostgreSQL has ended the connection, if another server process crashed
// (SQLSTATE 57P02). The error does not say so itself.
func (t *Tx) Explain(err error) error {
	if tx, ok := t.DB.Statement.ConnPool.(*pgxtx.Tx); ok {
		return tx.Explain(err)
	}
	return err
}

// Steer sends a statement that controls tx's transaction, such as SAVEPOINT. It bypasses the application's GORM logger.
func Steer(ctx context.Context, tx *gorm.DB, statement string) error {
	if _, err := unprepared(tx.Statement.ConnPool).ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(statement), err)
	}
	return nil
}

// SteerLater is Steer, executed no later than right before tx's next statement, which saves a round trip where pgx is
// available. If the server refuses it, the statement that was sent with it fails too, and Steered returns the error.
func SteerLater(ctx context.Context, tx *gorm.DB, statements ...string) error {
	if tx, ok := tx.Statement.ConnPool.(*pgxtx.Tx); ok {
		tx.Later(statements...)
		return nil
	}
	for _, statement := range statements { // some drivers refuse several at once
		if err := Steer(ctx, tx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Steered returns the server's error for the statements of SteerLater. If they were to set a savepoint, an older one of
// that name may still exist.
func Steered(tx *gorm.DB) error {
	if tx, ok := tx.Statement.ConnPool.(*pgxtx.Tx); ok {
		return tx.Refused()
	}
	return nil
}

// Within runs a step of the inbox with its deadline.
func (t *Tx) Within(step func() error) error {
	guard := time.AfterFunc(t.timeout, t.cancel)
	defer guard.Stop()
	return step()
}

// Rollback undoes everything unless the transaction has ended. If it fails, the connection is discarded. A handler that
// was given up as stuck may have a statement running, and database/sql waits for that beyond any deadline. Then
// Rollback returns, and the rollback follows that statement in the background.
func (t *Tx) Rollback() { t.RollbackUntil(context.Background()) }

// lateRollbackWait is how long to wait for a rollback when there is no time left. An unblocked one takes less.
const lateRollbackWait = 100 * time.Millisecond

// RollbackUntil is Rollback for callers that cannot wait any longer once ctx has ended: the rollback then continues in
// the background. The transaction's context ends too, so that a database that does not answer cannot block the rollback
// indefinitely.
func (t *Tx) RollbackUntil(ctx context.Context) {
	defer t.cancel()
	if t.ended {
		return
	}
	t.ended = true
	done := routine.Go(func() {
		defer t.release()
		_ = t.DB.Rollback().Error
	})
	patience := time.NewTimer(t.timeout)
	defer patience.Stop()
	select {
	case <-done:
		return
	case <-patience.C:
		return
	case <-ctx.Done():
	}
	patience.Reset(min(lateRollbackWait, t.timeout))
	select {
	case <-done:
	case <-patience.C:
	}
}

// Commit ends the transaction. After an error it may or may not have been committed, see store.OutcomeUnknown.
func (t *Tx) Commit() error {
	t.ended = true
	defer t.release()
	return t.Within(t.commit)
}

// commit commits the handler's transaction. On SQLite a refused commit (a deferred constraint) leaves the transaction
// open. database/sql takes it for ended, and some drivers do not roll it back. The connection would return to the pool
// with the transaction, and the write lock, still open. So COMMIT is sent as a statement, after which a rollback is
// still possible.
func (t *Tx) commit() error {
	if !t.dialect.CommitsByStatement {
		return t.DB.Commit().Error
	}
	_, err := unprepared(t.DB.Statement.ConnPool).ExecContext(t.Ctx, "COMMIT")
	_ = t.DB.Rollback() // after a commit there is nothing left to roll back
	return err
}
