package gormstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Run calls body in a transaction that begins with the key's marker and commits
// it together with what body wrote, or neither (contract 8.2). Body finds the
// transaction by inbox.DB(ctx), or handler.DB(ctx), which is the same; it must
// not end it. Body is not called, and duplicate is true, if the marker is there.
//
// For a run of the same key that is under way, in whichever process, it waits
// until that commits (duplicate) or rolls back (body runs), and returns
// idempotent.ErrInProgress when LockTimeout has passed, or shortly before ctx
// ends. On SQLite, which has one writer at a time, it waits for any other.
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
//
// Do not call Run in the body of another run without WithTx: its transaction
// is another one, and on SQLite the two wait for each other until LockTimeout.
// With a transaction of the caller's own, see WithTx, Run joins it.
func (s *Store) Run(ctx context.Context, run idempotent.Run, body func(ctx context.Context) error) (duplicate bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, naming(run.Key, err)
	}
	tx, joined, err := s.ambient(ctx)
	if err != nil {
		return false, naming(run.Key, err)
	}
	if joined {
		return s.join(ctx, tx, run, body)
	}
	for attempt := 1; ; attempt++ {
		duplicate, err = s.attempt(ctx, run, body)
		if !store.IsSerialization(err) || attempt >= s.opts.MaxAttempts || !pause(ctx, attempt) {
			return duplicate, err
		}
	}
}

// attempt is one transaction.
func (s *Store) attempt(ctx context.Context, run idempotent.Run, body func(ctx context.Context) error) (duplicate bool, err error) {
	tx, added, err := s.open(ctx, run)
	if err != nil {
		return false, naming(run.Key, err)
	}
	defer tx.Rollback() // after a panic or Goexit of body too
	if !added {
		return true, nil
	}
	if err := call(ctx, tx.DB, body); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, s.afterCommitError(ctx, run.Key, err)
	}
	return false, nil
}

// open begins a transaction and adds the marker to it. On SQLite both wait for
// the one writer, as long as the connection is told to (busy_timeout), which
// may be less than LockTimeout: then again. A pool's only connection is waited
// for in the same way.
func (s *Store) open(ctx context.Context, run idempotent.Run) (tx *invoke.Tx, added bool, err error) {
	began := time.Now()
	for attempt := 1; ; attempt++ {
		tx, added, err = s.tryOpen(ctx, run, s.opts.LockTimeout-time.Since(began))
		if err == nil || !s.markers.SingleWriter() || ctx.Err() != nil || !waited(err) {
			return tx, added, err
		}
		if time.Since(began) >= s.opts.LockTimeout || !pause(ctx, attempt) {
			return nil, false, fmt.Errorf("%w: %w", idempotent.ErrInProgress, err)
		}
	}
}

func (s *Store) tryOpen(ctx context.Context, run idempotent.Run, left time.Duration) (*invoke.Tx, bool, error) {
	begin, cancel := ctx, context.CancelFunc(func() {})
	if s.markers.SingleWriter() {
		begin, cancel = context.WithTimeout(ctx, left)
	}
	defer cancel()
	tx, err := invoke.BeginUntil(begin, s.db, s.opts.StatementTimeout, s.txOptions())
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // ours, by which begin was given up
		}
		return nil, false, err
	}
	added, err := s.add(ctx, tx.DB, run, left)
	if err != nil {
		tx.Rollback()
		return nil, false, err
	}
	return tx, added, nil
}

// waited: the file's one writer, or the pool's connection, was not free in time.
func waited(err error) bool {
	return store.IsWaiting(err) || errors.Is(err, idempotent.ErrInProgress)
}

// add adds the marker, waiting for others no longer than wait. It gives up
// before ctx ends: a statement that is cut short costs the connection.
func (s *Store) add(ctx context.Context, tx *gorm.DB, run idempotent.Run, wait time.Duration) (added bool, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)*9/10)
	}
	ctx, cancel := context.WithTimeout(ctx, wait+s.opts.StatementTimeout)
	defer cancel()
	added, err = s.markers.AddMarkerTx(ctx, tx, s.marker(run), wait)
	if errors.Is(err, store.ErrMarkerBusy) {
		err = fmt.Errorf("%w: %w", idempotent.ErrInProgress, err)
	}
	return added, err
}

// call runs body with the transaction. What it returns is returned as it is.
func call(ctx context.Context, tx *gorm.DB, body func(ctx context.Context) error) error {
	session, statements := invoke.Watch(ctx, tx)
	if err := body(handler.ContextWithDB(ctx, session)); err != nil {
		return err
	}
	return statements.Swallowed()
}

// afterCommitError finds out what a failed commit did. If the database
// answered, it did not commit. If the connection was lost nobody knows; the
// marker tells, because it is part of the transaction. It may be another run's,
// which waited for ours to be rolled back: the message is processed then, too.
// If it is not there, the server may still be working on the commit.
func (s *Store) afterCommitError(ctx context.Context, key idempotent.Key, commitErr error) error {
	err := fmt.Errorf("commit: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return naming(key, err)
	}
	found, readErr := s.lookAgain(ctx, key)
	switch {
	case readErr != nil:
		return naming(key, fmt.Errorf("%w: %w", idempotent.ErrLost, errors.Join(err, readErr)))
	case !found:
		return naming(key, fmt.Errorf("%w: its marker is not there (yet): %w", idempotent.ErrLost, err))
	}
	return nil
}

// lookAgain is Processed, tried for as long as a statement may take.
func (s *Store) lookAgain(ctx context.Context, key idempotent.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		found, err := s.markers.HasMarker(ctx, key.MessageID, key.HandlerKey)
		if err == nil || !store.IsTransient(err) || !pause(ctx, attempt) {
			return found, err
		}
	}
}

// pause waits longer from attempt to attempt, a quarter of a second at most,
// and reports false if ctx ended first.
func pause(ctx context.Context, attempt int) bool {
	limit := 10 * time.Millisecond << min(attempt, 5)
	timer := time.NewTimer(min(limit, 250*time.Millisecond)/2 + rand.N(min(limit, 250*time.Millisecond)/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
