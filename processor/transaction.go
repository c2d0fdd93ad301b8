package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// runTx runs a transactional handler (contract 5.11). The completion is
// written first, in the handler's transaction: a stale claim is found before
// the handler runs, and while it runs the row's lock keeps recovery away from
// it. What fails is rolled back, the completion with it, and recorded outside.
//
// The transaction does not end with the attempt's context: a handler that
// returns nil in spite of a cancelled context has completed, so its commit
// must still be possible. Only begin and commit have deadlines of their own.
func (r *runner) runTx(ctx context.Context, a *attempt, d handler.Delivery, w watcher) {
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	within := func(step func() error) error {
		guard := time.AfterFunc(r.statementTimeout, cancel)
		defer guard.Stop()
		return step()
	}

	tx := r.db.Session(&gorm.Session{NewDB: true, Context: txCtx})
	if err := within(func() error { tx = tx.Begin(); return tx.Error }); err != nil {
		a.err = r.cutShort(fmt.Errorf("begin handler transaction: %w", err))
		return
	}
	ended := false
	defer func() {
		if !ended {
			_ = within(func() error { return tx.Rollback().Error }) // the connection is discarded if this fails
		}
	}()

	var current bool
	err := within(func() (err error) {
		current, err = r.store.CompleteTx(txCtx, tx, completionOf(a.claim, models.OutcomeProcessed), r.now())
		return err
	})
	if err != nil {
		a.err = r.cutShort(fmt.Errorf("complete in handler transaction: %w", err))
		return
	}
	if !current {
		a.fenced = true
		return
	}

	session, statements := watch(ctx, tx)
	err = r.call(handler.ContextWithDB(ctx, session), a.handler, session, d, w)
	if err == nil {
		err = statements.swallowed()
	}
	if err != nil {
		a.err = err
		return
	}
	ended = true
	err = within(func() error { return commit(txCtx, tx) })
	if err == nil {
		a.stored = true
		return
	}
	a.stored, a.err = r.afterCommitError(ctx, a.claim, err)
}

// commit ends the handler's transaction. On SQLite a commit that is refused (a
// deferred constraint) leaves the transaction open. database/sql takes it for
// ended, and not every driver rolls it back: the connection would go back to
// the pool with the transaction, and the write lock, on it. So the statement is
// sent by hand, while a rollback is still possible.
func commit(ctx context.Context, tx *gorm.DB) error {
	if tx.Dialector.Name() != "sqlite" {
		return tx.Commit().Error
	}
	_, err := tx.Statement.ConnPool.ExecContext(ctx, "COMMIT")
	_ = tx.Rollback() // after a commit there is nothing left to roll back
	return err
}

// afterCommitError finds out what a failed commit did. If the database
// answered, it did not commit, and the handler is to blame (a swallowed SQL
// error, a deferred constraint). If the connection was lost nobody knows: the
// status row tells, because the completion is part of the transaction
// (contract 5.10).
func (r *runner) afterCommitError(ctx context.Context, c store.Claim, commitErr error) (committed bool, err error) {
	err = fmt.Errorf("commit handler transaction: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return false, err
	}
	// Between the lost commit and this reading the server may still be
	// working on it. A claim that is still ours after the row could be
	// locked is settled by the release that follows: it carries the version,
	// so if the commit wins the race against it, it changes nothing.
	states, readErr := r.states(ctx, c.StatusID)
	if readErr != nil {
		return false, &uncharged{reason: errors.Join(err, readErr), delay: time.Second}
	}
	if s, found := states[c.StatusID]; found && s.Completed && s.Version == c.Version+1 {
		return true, nil
	}
	return false, &uncharged{reason: err, delay: time.Second}
}

// states reads a status back, trying for as long as a statement may take.
func (r *runner) states(ctx context.Context, id string) (map[string]store.State, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.statementTimeout)
	defer cancel()
	for {
		states, err := r.store.States(ctx, []string{id})
		if err == nil || !store.IsTransient(err) {
			return states, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// cutShort tells the database's own trouble from everything else: the former
// is not the handler's failure.
func (r *runner) cutShort(err error) error {
	if store.IsTransient(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &uncharged{reason: err, delay: backoff(1, r.maxRetryDelay)}
	}
	return err
}
