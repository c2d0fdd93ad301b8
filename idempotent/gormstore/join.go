package gormstore

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/session"
	"github.com/gorm-inbox/inbox/internal/store"
)

type txKey struct{}

// WithTx returns a context that carries a transaction of the caller, for Run to join: the marker and the body's writes
// become part of it, and are stored once the caller has committed (contract 8.2). Only then may the message be
// acknowledged. A run whose body fails leaves nothing in the transaction, neither its marker nor the body's writes,
// even if the caller commits.
//
// While the transaction is open, every other run of the same key waits for its commit, even if the run was a duplicate.
// So keep it short. Callers that run several keys in one transaction must use the same order of keys: otherwise they
// deadlock, and PostgreSQL fails one. If the transaction's isolation makes a conflict an error (REPEATABLE READ,
// SERIALIZABLE), that error is returned: only the caller can roll back and begin again. The transaction must belong to
// the pool that the store was made with.
//
// Do not use it where Run can begin the transaction itself: Run retries that one after a conflict with another.
func WithTx(ctx context.Context, tx *gorm.DB) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// errOtherPool refuses a transaction of another pool: a marker in another database than all others finds no duplicate.
var errOtherPool = errors.New("the transaction of WithTx is of another connection pool than the store")

// joinedTx returns the transaction that WithTx put into ctx.
func (s *Store) joinedTx(ctx context.Context) (tx *gorm.DB, joined bool, err error) {
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

// checkTx returns an error if tx is no transaction on the store's database, as far as that can be determined.
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
	if err := session.Check(tx); err != nil {
		return fmt.Errorf("WithTx: %w", err)
	}
	return nil
}

// join runs the body in the caller's transaction. A savepoint is set before the marker. So a body that fails undoes its
// marker, too, even if the caller commits. So does a body that panics, which a caller may recover from.
func (s *Store) join(ctx context.Context, tx *gorm.DB, w work) (duplicate bool, err error) {
	if err := s.execSavepoint(ctx, tx, "SAVEPOINT inbox_marker"); err != nil {
		return false, naming(w.Key, err)
	}
	undo := true
	defer func() {
		if !undo {
			return
		}
		undoErr := s.execSavepoint(ctx, tx, "ROLLBACK TO SAVEPOINT inbox_marker; RELEASE SAVEPOINT inbox_marker")
		if undoErr != nil {
			// For instance rows that the body left open prevent the rollback to the savepoint. They would not prevent
			// the caller's commit, so the whole transaction is rolled back.
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
	if err := s.execSavepoint(ctx, tx, "RELEASE SAVEPOINT inbox_marker"); err != nil {
		return false, naming(w.Key, err)
	}
	undo = false
	handlertx.AfterCommit(tx, committed) // only has an effect if the caller is a handler of an inbox
	return !added, nil
}

// execSavepoint sends a statement about the savepoint. It ignores the end of ctx: the body's writes before that must be
// kept or undone all the same.
func (s *Store) execSavepoint(ctx context.Context, tx *gorm.DB, statements string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	return handlertx.Steer(ctx, tx, statements)
}

// Mark adds the markers of a run to the caller's transaction, and nothing else. It is for callers that call the body
// themselves. duplicate means that the marker existed: then do not call the body, but commit before the message is
// acknowledged, because a synchronous standby may not have the marker yet. Mark waits as Run does. After an error the
// transaction must be rolled back; use Run with WithTx if it must continue.
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

// Joins reports whether transactions of db can contain the store's markers (see Mark and WithTx): both must use the
// same connection pool.
func (s *Store) Joins(db *gorm.DB) bool {
	its, itsErr := db.DB()
	ours, oursErr := s.db.DB()
	return itsErr == nil && oursErr == nil && its == ours
}
