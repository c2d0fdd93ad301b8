package gormstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/session"
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
	body     func(ctx context.Context) error
	unmarked bool // whether there is no key to mark, so body runs each time
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

// open begins a transaction and adds the marker to it. On SQLite both wait for the one writer, for as long as the
// connection's busy_timeout. That may be shorter than LockTimeout, so open tries again. It waits for the only
// connection of a pool in the same way.
func (s *Store) open(ctx context.Context, w work) (tx *handlertx.Tx, added bool, err error) {
	began := time.Now()
	for retry := newBackoff(); ; {
		tx, added, err = s.tryOpen(ctx, w, s.opts.LockTimeout-time.Since(began))
		if err == nil || !s.markers.SingleWriter() || !timedOut(err) {
			return tx, added, err
		}
		if time.Since(began) >= s.opts.LockTimeout || !retry.Wait(ctx) {
			return nil, false, inProgress(ctx, err)
		}
	}
}

// inProgress returns an error which says that the key may be another run's. It adds ctx's error, because the driver may
// not have noticed that ctx ended.
func inProgress(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("%w: %w", idempotent.ErrInProgress, err)
}

func (s *Store) tryOpen(ctx context.Context, w work, left time.Duration) (*handlertx.Tx, bool, error) {
	begin, cancel := ctx, context.CancelFunc(func() {})
	if s.markers.SingleWriter() {
		begin, cancel = context.WithTimeout(ctx, left)
	}
	defer cancel()
	tx, err := handlertx.BeginUntil(begin, s.db, s.opts.StatementTimeout, s.opts.Isolation)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.Canceled) { // the begin was given up, but not by the caller
			limit := "StatementTimeout of " + s.opts.StatementTimeout.String()
			if begin.Err() != nil {
				limit = "LockTimeout of " + s.opts.LockTimeout.String()
			}
			err = fmt.Errorf("no transaction within %s: %w: %w", limit, context.DeadlineExceeded, err)
		}
		return nil, false, err
	}
	added, err := s.add(ctx, tx.DB, w, left)
	if err != nil {
		tx.Rollback()
		store.RenewSessions(s.db, err)
		return nil, false, err
	}
	return tx, added, nil
}

// timedOut reports whether the file's one writer, or the pool's connection, was not free in time.
func timedOut(err error) bool { return store.IsWaiting(err) || errors.Is(err, context.Canceled) }

// add adds the markers of the run, and waits for others for at most wait. It gives up before ctx ends, because
// cancelling a statement costs the connection.
//
// While a rename is rolled out, the programs have some keys in common. The second program waits for the first one at
// such a key, and then finds its marker. The keys are sorted: different orders would deadlock.
func (s *Store) add(ctx context.Context, tx *gorm.DB, w work, wait time.Duration) (added bool, err error) {
	if w.unmarked {
		return true, nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/10*9) // divide first, so that it cannot overflow
	}
	until := time.Now().Add(wait)
	ctx, cancel := context.WithDeadline(ctx, until.Add(s.opts.StatementTimeout))
	defer cancel()
	marker := s.marker(w.Run)
	keys := w.Run.Keys()
	slices.SortFunc(keys, func(a, b idempotent.Key) int { return strings.Compare(a.HandlerKey, b.HandlerKey) })
	for _, key := range keys {
		marker.HandlerKey = key.HandlerKey
		added, err = s.markers.AddMarkerTx(ctx, tx, marker, time.Until(until))
		if errors.Is(err, store.ErrMarkerBusy) {
			err = inProgress(ctx, err)
		}
		if err != nil || !added {
			return false, err
		}
	}
	return true, nil
}

// afterCommitError returns nil if a failed commit has committed after all. If the database responded with an error, it
// did not commit. If the connection was lost the outcome is unknown; the marker shows it, because it is part of the
// transaction. The marker may be another run's that waited for ours to be rolled back: the message is processed then,
// too. If there is no marker, the server may still be working on the commit.
func (s *Store) afterCommitError(ctx context.Context, w work, commitErr error) error {
	err := fmt.Errorf("commit: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return naming(w.Key, err)
	}
	if w.unmarked {
		return naming(w.Key, fmt.Errorf("%w: it has no marker: %w", idempotent.ErrLost, err))
	}
	found, readErr := s.readMarker(ctx, w.Key)
	switch {
	case readErr != nil:
		return naming(w.Key, fmt.Errorf("%w: %w", idempotent.ErrLost, errors.Join(err, readErr)))
	case !found:
		return naming(w.Key, fmt.Errorf("%w: its marker is not there (yet): %w", idempotent.ErrLost, err))
	}
	return nil
}

// readMarker is Processed, with transient errors retried until StatementTimeout is over.
func (s *Store) readMarker(ctx context.Context, key idempotent.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	for retry := newBackoff(); ; {
		found, err := s.markers.HasMarker(ctx, key.MessageID, key.HandlerKey, key.Namespace)
		if err == nil || !store.IsTransient(err) || !retry.Wait(ctx) {
			return found, err
		}
	}
}

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

// depthKey is the key of how many runs ctx is in that have joined a transaction. Each has a savepoint of another name:
// on MySQL a savepoint replaces an older one of its name.
type depthKey struct{}

// join runs the body in the caller's transaction. A savepoint is set before the marker. So a body that fails undoes its
// marker, too, even if the caller commits. So does a body that panics, which a caller may recover from.
func (s *Store) join(ctx context.Context, tx *gorm.DB, w work) (duplicate bool, err error) {
	depth, _ := ctx.Value(depthKey{}).(int)
	ctx = context.WithValue(ctx, depthKey{}, depth+1)
	savepoint := "SAVEPOINT inbox_marker"
	if depth > 0 {
		savepoint = fmt.Sprintf("%s_%d", savepoint, depth)
	}
	if err := s.execSavepoint(ctx, tx, savepoint); err != nil {
		return false, naming(w.Key, err)
	}
	undo := true
	defer func() {
		if !undo {
			return
		}
		undoErr := s.execSavepoint(ctx, tx, "ROLLBACK TO "+savepoint, "RELEASE "+savepoint)
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
	if err := s.execSavepoint(ctx, tx, "RELEASE "+savepoint); err != nil {
		return false, naming(w.Key, err)
	}
	undo = false
	handlertx.AfterCommit(tx, committed) // only has an effect if the caller is a handler of an inbox
	return !added, nil
}

// execSavepoint sends statements about the savepoint. It ignores the end of ctx: the body's writes before that must be
// kept or undone all the same.
func (s *Store) execSavepoint(ctx context.Context, tx *gorm.DB, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	for _, statement := range statements {
		if err := handlertx.Steer(ctx, tx, statement); err != nil {
			return err
		}
	}
	return nil
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
