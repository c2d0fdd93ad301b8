package gormstore

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
)

type txKey struct{}

// WithTx returns ctx carrying a transaction of the caller's own, for Run to
// join: marker and body become part of it, and are there once the caller has
// committed (contract 8.2). Only then may the message be acknowledged. A run
// whose body fails leaves nothing in the transaction, marker and body's writes
// alike, even if the caller commits it all the same.
//
// While it is open, every other run of the same key waits for the caller's
// commit, that of a duplicate too, so keep it short, and let callers that run several keys in one
// transaction do so in one order: otherwise they deadlock, and PostgreSQL fails
// one. Where the transaction's isolation makes a conflict an error (REPEATABLE
// READ, SERIALIZABLE), the error is returned: roll back and begin anew, nobody
// else can. The transaction must be of the pool that the store was made with.
//
// Do not use it where Run's own transaction will do: that one is tried again
// when it was in another's way.
func WithTx(ctx context.Context, tx *gorm.DB) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// errOtherPool: a marker in another database than all others finds no duplicate.
var errOtherPool = errors.New("the transaction of WithTx is of another connection pool than the store")

// ambient returns the transaction that WithTx put into ctx.
func (s *Store) ambient(ctx context.Context) (tx *gorm.DB, joined bool, err error) {
	value := ctx.Value(txKey{})
	if value == nil {
		return nil, false, nil
	}
	tx, _ = value.(*gorm.DB)
	if err := s.checkTx(tx); err != nil {
		return nil, false, err
	}
	return tx.Session(&gorm.Session{NewDB: true}), true, nil
}

// checkTx refuses what is no transaction on the store's database, as far as
// that can be told.
func (s *Store) checkTx(tx *gorm.DB) error {
	if tx == nil {
		return fmt.Errorf("WithTx: %w", store.ErrNoTransaction)
	}
	if _, open := tx.Statement.ConnPool.(gorm.TxCommitter); !open {
		return fmt.Errorf("WithTx: %w", store.ErrNoTransaction)
	}
	its, itsErr := tx.DB()
	ours, oursErr := s.db.DB()
	if itsErr == nil && oursErr == nil && its != ours {
		return errOtherPool
	}
	return nil
}

// join runs body in the caller's transaction, behind a savepoint that stands
// before the marker: a body that fails takes its marker with it, whatever the
// caller does then, and so does one that panics, which a caller may recover
// from.
func (s *Store) join(ctx context.Context, tx *gorm.DB, w work) (duplicate bool, err error) {
	if err := s.steer(ctx, tx, "SAVEPOINT inbox_marker"); err != nil {
		return false, naming(w.Key, err)
	}
	undo := true
	defer func() {
		if !undo {
			return
		}
		undoErr := s.steer(ctx, tx, "ROLLBACK TO SAVEPOINT inbox_marker; RELEASE SAVEPOINT inbox_marker")
		if undoErr != nil {
			// Rows that body left open are in the way, say, and would not be in
			// that of the caller's commit. All has to go then.
			undoErr = errors.Join(undoErr, tx.Rollback().Error)
			err = errors.Join(err, naming(w.Key, fmt.Errorf("the whole transaction was rolled back: %w", undoErr)))
		}
	}()
	added, err := s.add(ctx, tx, w, s.opts.LockTimeout)
	if err != nil {
		return false, naming(w.Key, err)
	}
	committed := func() {}
	if added {
		statements, err := s.call(ctx, tx, w)
		if err != nil {
			return false, err
		}
		committed = statements.Committed
	}
	if err := s.steer(ctx, tx, "RELEASE SAVEPOINT inbox_marker"); err != nil {
		return false, naming(w.Key, err)
	}
	undo = false
	handlertx.AfterCommit(tx, committed) // where the caller is a handler of an inbox
	return !added, nil
}

// steer sends a statement about the savepoint. It does not end with ctx: what a
// body did before ctx ended must be kept or undone after it, too.
func (s *Store) steer(ctx context.Context, tx *gorm.DB, statements string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	return handlertx.Steer(ctx, tx, statements)
}

// Mark adds the marker of a run to the caller's transaction, and nothing else:
// for those who call the body themselves. Duplicate means that the marker was
// there: do not call the body, and commit before the message is acknowledged: a
// synchronous standby may not have the marker yet. It waits as Run does. After an error the transaction must be
// rolled back; use Run with WithTx where it is to go on.
func (s *Store) Mark(ctx context.Context, tx *gorm.DB, run idempotent.Run) (duplicate bool, err error) {
	if err := s.checkTx(tx); err != nil {
		return false, naming(run.Key, err)
	}
	added, err := s.add(ctx, tx, work{Run: run}, s.opts.LockTimeout)
	if err != nil {
		return false, naming(run.Key, err)
	}
	return !added, nil
}
