package gormstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Run calls body in a transaction that begins with the key's marker and commits
// it together with what body wrote, or neither (contract 8.2). Body finds the
// transaction by handler.DB(ctx) and must not end it. Body is not called, and
// duplicate is true, if the marker is there.
//
// For a run of the same key that is under way, in whichever process, it waits
// until that commits (duplicate) or rolls back (body runs), and returns
// idempotent.ErrInProgress when LockTimeout has passed, or shortly before ctx
// ends. On SQLite, which has one writer at a time, it waits for any other, and
// drivers may wait for longer, as long as busy_timeout says.
//
// Everything is rolled back if body fails, panics or ends its goroutine, if it
// swallowed the failure of one of its statements (unless by a savepoint that it
// rolled back to), or if the commit is refused, for a deferred constraint say.
// What a body that returned nil wrote is committed even if ctx has ended. A
// deadlock or a serialization failure runs body again, at most MaxAttempts
// times in all: what it did besides its transaction happens again.
//
// If the answer to a commit is lost, Run looks for the marker. It returns
// idempotent.ErrLost if it cannot find it: the commit may still take place.
// Where PostgreSQL has a synchronous standby, neither that nor a duplicate is
// reported before the standby has the marker.
//
// Do not call Run in the body of another run without WithTx: its transaction
// is another one, and on SQLite the two wait for each other until LockTimeout.
// With a transaction of the caller's own, see WithTx, Run joins it.
func (s *Store) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	return s.do(ctx, work{Run: run, body: body})
}

// work is what a transaction is for.
type work struct {
	idempotent.Run
	body func(ctx context.Context) error
	// unmarked: there is no key to mark, body runs each time.
	unmarked bool
}

func (s *Store) do(ctx context.Context, w work) (duplicate bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, naming(w.Key, err)
	}
	tx, joined, err := s.ambient(ctx)
	if err != nil {
		return false, naming(w.Key, err)
	}
	if joined {
		return s.join(ctx, tx, w)
	}
	for attempt := 1; ; attempt++ {
		var collided bool
		duplicate, collided, err = s.attempt(ctx, w)
		if !collided || attempt >= s.opts.MaxAttempts || !pause(ctx, attempt) {
			return duplicate, err
		}
	}
}

// attempt is one transaction. collided says that the database rolled it back
// because it got in another's way.
func (s *Store) attempt(ctx context.Context, w work) (duplicate, collided bool, err error) {
	tx, added, err := s.open(ctx, w)
	if err != nil {
		return false, store.IsSerialization(err), naming(w.Key, err)
	}
	defer tx.Rollback() // after a panic or Goexit of body too
	if !added {
		// Not acknowledged before a synchronous standby has the marker, too.
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

// call runs body with the transaction. What it returns is returned as it is.
func (s *Store) call(ctx context.Context, tx *gorm.DB, w work) (*handlertx.WatchedTx, error) {
	session, statements := handlertx.Watch(ctx, tx, s.opts.StatementTimeout)
	err := w.body(context.WithValue(handler.ContextWithDB(ctx, session), bodyKey{}, running{s, session}))
	if err == nil {
		err = statements.Swallowed()
	}
	return statements, err
}

// pause waits longer from attempt to attempt, a quarter of a second at most,
// and reports false if ctx ended first.
func pause(ctx context.Context, attempt int) bool {
	limit := 10 * time.Millisecond << min(attempt, 5)
	return routine.Sleep(ctx, min(limit, 250*time.Millisecond)/2+rand.N(min(limit, 250*time.Millisecond)/2))
}
