package gormstore

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Run calls body in a transaction that begins with the marker of each of the run's keys. It commits the marker together
// with body's writes, or neither (contract 8.2). body finds the transaction by handler.DB(ctx) and must not end it. If
// the marker exists, body is not called and duplicate is true.
//
// If a run of the same key is in progress, in any process, Run waits until that run commits (duplicate) or rolls back
// (body runs). It returns idempotent.ErrInProgress after LockTimeout, or shortly before ctx ends. On SQLite, which has
// one writer at a time, it waits for any other writer, and drivers may wait for as long as busy_timeout says.
//
// Everything is rolled back if body fails, panics or ends its goroutine, if it swallowed the failure of one of its
// statements (unless it rolled back to a savepoint), or if the commit is refused, for instance by a deferred
// constraint. If a body returned nil, its writes are committed even if ctx has ended. After a deadlock or a
// serialization failure body runs again, at most MaxAttempts times in all: its effects outside of the transaction
// happen again.
//
// If the response to a commit is lost, Run looks for the marker. If it cannot find it, it returns idempotent.ErrLost:
// the commit may still take place. If PostgreSQL has a synchronous standby, neither that nor a duplicate is reported
// before the standby has the marker.
//
// Do not call Run in the body of another run without WithTx: its transaction is a different one, and on SQLite the two
// wait for each other until LockTimeout. See WithTx for how Run joins a transaction of the caller.
func (s *Store) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	return s.do(ctx, work{Run: run, body: body})
}

// work is what to do in a transaction.
type work struct {
	idempotent.Run
	body func(ctx context.Context) error
	// unmarked says that there is no key to mark, so body runs each time.
	unmarked bool
}

func (s *Store) do(ctx context.Context, w work) (duplicate bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, naming(w.Key, err)
	}
	tx, joined, err := s.joinedTx(ctx)
	if err != nil {
		return false, naming(w.Key, err)
	}
	if joined {
		return s.join(ctx, tx, w)
	}
	retry := newBackoff()
	for attempt := 1; ; attempt++ {
		var collided bool
		duplicate, collided, err = s.attempt(ctx, w)
		if !collided || attempt >= s.opts.MaxAttempts || !retry.Wait(ctx) {
			return duplicate, err
		}
	}
}

// attempt runs one transaction. collided says that the database rolled it back because of a conflict with another one.
func (s *Store) attempt(ctx context.Context, w work) (duplicate, collided bool, err error) {
	tx, added, err := s.open(ctx, w)
	if err != nil {
		return false, store.IsSerialization(err), naming(w.Key, err)
	}
	defer tx.Rollback() // also after a panic or Goexit of body
	if !added {
		// Commit, so that the duplicate is not acknowledged before a synchronous standby has the marker.
		if err := tx.Commit(); err != nil {
			return false, store.IsSerialization(err), naming(w.Key, fmt.Errorf("confirm its marker: %w", err))
		}
		return true, false, nil
	}
	statements, err := s.call(ctx, tx.DB, w)
	if err != nil {
		return false, store.IsSerialization(statements.Fault(err, store.IsDatabaseFault)), err
	}
	if failed := tx.Commit(); failed != nil {
		if err := s.afterCommitError(ctx, w, failed); err != nil {
			return false, store.IsSerialization(failed), err
		}
	}
	statements.Committed()
	return false, false, nil
}

// call runs body with the transaction and returns its error unchanged.
func (s *Store) call(ctx context.Context, tx *gorm.DB, w work) (*handlertx.Guard, error) {
	session, statements := handlertx.Watch(ctx, tx, s.opts.StatementTimeout)
	err := w.body(context.WithValue(handler.ContextWithDB(ctx, session), bodyKey{}, running{s, session}))
	if err == nil {
		err = statements.Swallowed()
	}
	return statements, err
}

// newBackoff returns the pauses between attempts.
func newBackoff() routine.Backoff {
	return routine.Backoff{First: 20 * time.Millisecond, Max: 250 * time.Millisecond}
}
