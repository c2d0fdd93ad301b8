package attempt

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Runner runs attempts. It is safe for concurrent use.
type Runner struct {
	// DB is the database in which handlers get their sessions and transactions.
	DB               *gorm.DB
	StatementTimeout time.Duration
	// TxIsolation is the isolation level of handlers' transactions; sql.LevelDefault means READ COMMITTED.
	TxIsolation sql.IsolationLevel
	// StuckGrace is how long to wait for a handler that ignores its cancelled context.
	StuckGrace time.Duration
	Middleware []handler.Middleware
	// Running tracks the running calls; nil tracks none.
	Running *Running
	// Instruments trace each call. If nil, the caller traces, see StartSpan.
	Instruments *telemetry.Instruments

	commits commits
}

// Call says how to run a group of attempts.
type Call struct {
	// Steps, if not nil, makes the attempts run in a transaction, for handlers of any kind. A plain handler finds it by
	// handler.DB.
	Steps *Steps
	// MayStart is called right before each call of the handler, with the handler's context. If it returns an error, the
	// attempt ends with that error and the handler is not called.
	MayStart func(ctx context.Context) error
	// Until, if not nil, ends when there is no more time for handlers. From then on we wait for no begin, no rollback,
	// and no call that ignores its cancelled context.
	Until context.Context
	// Overdue is called when the handler has not returned a second after its context ended. Returned is called when it
	// returns after it was given up. Both are called from goroutines of the call.
	Overdue, Returned func()
}

// Steps are a transaction's writes besides the handler's: they record that the message is handled, so that either both
// are committed or neither is. Each step gets the transaction and the attempts that share it.
type Steps struct {
	// Write records that the attempts are done, and returns those it accepted; the others are stale. It runs before the
	// handler, except in a group of several calls, where it runs last. If it returns an error the attempts end. With
	// ErrDone, which is for a single attempt, the transaction is committed and the handler is not called.
	Write func(ctx context.Context, t *handlertx.Tx, group []*Attempt) (current []*Attempt, err error)
	// Check runs first in a group of several calls. It returns the attempts that may run.
	Check func(ctx context.Context, t *handlertx.Tx, group []*Attempt) (current []*Attempt, err error)
	// Committed reports whether Write's rows for the attempt are in the database, after a commit that got no response.
	// If Committed is nil, only the next attempt finds out.
	Committed func(ctx context.Context, a *Attempt) (bool, error)
}

// ErrDone is returned by Steps.Write if the handler has processed the message before. The row that Write read may be
// stored on this server only. If Write has written or locked something, the commit waits until a synchronous standby
// has it, too.
var ErrDone = errors.New("the handler has processed the message before")

// Run runs attempts of one handler to their end: a single one, the messages of one batch call, or those that share a
// transaction (contract 5.11). It returns in any case: panics and runtime.Goexit are failures, and a handler that does
// not return is given up StuckGrace after it was reported as overdue.
//
// A panic of other code that runs for the attempt (a driver, a plugin) is the attempt's failure, too: it must not end
// the process.
func (r *Runner) Run(ctx context.Context, group []*Attempt, c Call) {
	started := time.Now()
	r.runProtected(ctx, group, c)
	for _, a := range group {
		store.RenewSessions(r.DB, a.Err)
		if a.Duration == 0 {
			a.Duration = time.Since(started)
		}
		if !a.Again {
			a.collisions = 0
		}
	}
}

func (r *Runner) runProtected(ctx context.Context, group []*Attempt, c Call) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err := usable(Recovered(v))
		for _, a := range group {
			a.Stored, a.Again = false, false
			if len(group) > 1 && a.Handler.TxGroup() > 1 {
				a.repeat(true)
			} else {
				a.Err = err
			}
		}
	}()
	h := group[0].Handler
	switch {
	case h.Kind() != handler.Transactional && c.Steps == nil:
		r.runPlain(ctx, group, c)
	case len(group) > 1 && h.TxGroup() > 1:
		r.runTxGroup(ctx, group, c)
	default:
		r.runTx(ctx, group, c)
	}
}

// runPlain makes one call outside any transaction.
func (r *Runner) runPlain(ctx context.Context, group []*Attempt, c Call) {
	ctx, cancel := limited(StartSpan(ctx, r.Instruments, group...), group[0].Timeout)
	defer cancel(nil)
	errs := r.call(ctx, cancel, r.DB, nil, group, c)
	for i, a := range group {
		a.Err, a.Cause = errs[i], context.Cause(ctx)
	}
}

// runTx makes one call in a transaction, for one message or for a batch. The steps run first: a stale claim or a
// duplicate is found before the handler runs, and the locks of the written rows keep others away while it runs. If
// anything fails, the whole transaction is rolled back. If only some messages of a batch failed, the others run again
// without them, so that nothing a failed message wrote is committed.
func (r *Runner) runTx(ctx context.Context, group []*Attempt, c Call) {
	t, err := r.begin(ctx, c)
	if err != nil {
		interruptBegin(group, err)
		return
	}
	defer t.RollbackUntil(c.until())
	current := group
	if c.Steps != nil {
		if current, err = c.Steps.Write(ctx, t, group); errors.Is(err, ErrDone) {
			r.done(t, group, err)
			return
		}
		if err != nil {
			r.stepFailed(group, err)
			return
		}
		markStale(group, current)
	}
	if len(current) == 0 {
		return
	}

	within, cancel := limited(StartSpan(ctx, r.Instruments, current...), current[0].Timeout)
	defer cancel(nil)
	session, watched := handlertx.Watch(within, t.DB, r.StatementTimeout)
	errs := r.call(within, cancel, session, session, current, c)
	for _, a := range current {
		a.Cause, a.watched = context.Cause(within), watched
	}
	if fault := databaseFault(t, watched, errs); fault != nil {
		r.interruptCall(current, errs, fault)
		return
	}
	swallowed := watched.Swallowed()
	if len(current) > 1 && undecided(errs, swallowed) {
		repeatAlone(current)
		return
	}
	if anyFailed(current, errs, swallowed) {
		return
	}
	committed, err := r.commit(ctx, t, current, c)
	switch {
	case committed:
		r.commits.note(group[0].Handler)
		watched.Committed()
	case errors.Is(err, errInterrupted):
		return
	case store.IsDatabaseFault(err):
		r.interrupt(current, Cut{Reason: err})
		return
	case len(current) > 1: // a deferred constraint does not say which message's row violated it
		repeatAlone(current)
		return
	}
	for _, a := range current {
		a.Stored, a.Err = committed && c.Steps != nil, err
	}
}

func (r *Runner) begin(ctx context.Context, c Call) (*handlertx.Tx, error) {
	if c.Until == nil {
		return handlertx.Begin(ctx, r.DB, r.StatementTimeout, r.TxIsolation)
	}
	return handlertx.BeginUntil(ctx, r.DB, r.StatementTimeout, r.TxIsolation)
}

func (c Call) until() context.Context {
	if c.Until == nil {
		return context.Background()
	}
	return c.Until
}

// markStale marks the attempts of group that are not in current. Both are in the same order.
func markStale(group, current []*Attempt) {
	for _, a := range group {
		if a.Stale = len(current) == 0 || a != current[0]; !a.Stale {
			current = current[1:]
		}
	}
}

// undecided reports whether a batch's call failed as a whole, so that it is unknown which message is to blame.
// Everything was rolled back, so each message can run alone; but not beside a call that may still be running.
func undecided(errs []error, swallowed error) bool {
	failed := 0
	for _, err := range errs {
		if errors.Is(err, ErrStuck) {
			return false
		}
		if err != nil {
			failed++
		}
	}
	return failed == len(errs) || failed == 0 && swallowed != nil
}

// anyFailed assigns the errors of one call to its attempts and reports whether there are any. If there are, the
// attempts without an error run again without the others.
func anyFailed(group []*Attempt, errs []error, swallowed error) bool {
	failed := slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	if !failed && swallowed != nil {
		fail(group, swallowed)
		return true
	}
	if !failed {
		return false
	}
	for i, a := range group {
		if a.Err = errs[i]; a.Err == nil {
			a.repeat(false)
		}
	}
	return true
}

// StartSpan starts the span of a call of some attempts. EndSpan ends it, once their outcome is known.
func StartSpan(ctx context.Context, instruments *telemetry.Instruments, group ...*Attempt) context.Context {
	if !instruments.Traces() {
		return ctx
	}
	messages := make([]handler.Metadata, len(group))
	for i, a := range group {
		messages[i] = a.Delivery().Metadata
	}
	ctx, span := instruments.StartAttempt(ctx, group[0].Handler.Key(), messages...)
	for _, a := range group {
		a.span.End() // ends the span of an earlier call of the same attempt
		a.span = span
	}
	return ctx
}

// errInterrupted means that the commit got no response and that interrupt has ended the attempts.
var errInterrupted = errors.New("the commit got no response")

// commit ends the transaction and reports whether it was committed. If not, err says what that means for its attempts.
// After errInterrupted they have their errors already.
//
// If the database responded with an error it did not commit, and the handler is to blame (a swallowed SQL error, a
// deferred constraint). If the connection was lost the outcome is unknown. Then commit reads back the rows that
// Steps.Write has written: they are part of the transaction, and the result for one attempt holds for all that share
// it.
func (r *Runner) commit(ctx context.Context, t *handlertx.Tx, group []*Attempt, c Call) (committed bool, err error) {
	commitErr := t.Commit()
	if commitErr == nil {
		return true, nil
	}
	err = fmt.Errorf("commit handler transaction: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return false, err
	}
	// The server may still be working on the commit while we read. If the commit is not visible yet, later writes carry
	// the version of the claim, or write the same marker. So if the commit succeeds after all, their conflict reveals it.
	if c.Steps != nil && c.Steps.Committed != nil {
		there, readErr := r.readBack(ctx, c.Steps, group[0])
		if there {
			return true, nil
		}
		err = errors.Join(err, readErr)
	}
	for _, a := range group {
		a.unanswered = a.watched
	}
	r.interrupt(group, Cut{Reason: err, Unknown: true})
	return false, errInterrupted
}

// readBack calls Steps.Committed, and retries transient errors until StatementTimeout is over.
func (r *Runner) readBack(ctx context.Context, s *Steps, a *Attempt) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.StatementTimeout)
	defer cancel()
	for {
		there, err := s.Committed(ctx, a)
		if err == nil || !store.IsTransient(err) {
			return there, err
		}
		if !routine.Sleep(ctx, 100*time.Millisecond) {
			return false, err
		}
	}
}

// done commits the transaction in which Steps.Write found that the message was processed before.
func (r *Runner) done(t *handlertx.Tx, group []*Attempt, err error) {
	if failed := t.Commit(); failed != nil {
		interruptBegin(group, fmt.Errorf("commit handler transaction: %w", failed))
		return
	}
	for _, a := range group {
		a.NotifyCommitted()
		a.Err = err
	}
}
