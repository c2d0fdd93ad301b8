package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// runTx runs one call of a transactional handler (contract 5.11): of one
// message, or of a batch. The completions are written first, in the handler's
// transaction: a stale claim is found before the handler runs, and while it
// runs the rows' locks keep recovery away from them. What fails is rolled back,
// the completions with it, and recorded outside; if only some messages of a
// batch failed, the others run again without them, so that nothing a failed
// message wrote is ever committed.
func (r *runner) runTx(ctx context.Context, members []member, w watcher) {
	t, err := r.begun(invoke.Begin(ctx, r.db, r.statementTimeout, r.txIsolation))
	if err != nil {
		r.interrupt(members, err)
		return
	}
	defer t.Rollback()
	current, err := t.complete(members)
	if err != nil {
		r.endedBy(members, err)
		return
	}
	if len(current) == 0 {
		return
	}

	limited, cancel := members[0].limited(r.traced(ctx, current))
	defer cancel()
	session, statements := invoke.Watch(limited, t.DB, r.statementTimeout)
	errs := r.call(handler.ContextWithDB(limited, session), session, current, w)
	for _, m := range current {
		m.cause, m.statements = context.Cause(limited), statements
	}
	if err := databaseFault(statements, errs); err != nil {
		r.interruptCall(current, errs, err)
		return
	}
	swallowed := statements.Swallowed()
	if len(current) > 1 && nobodysFault(errs, swallowed) {
		repeatAlone(current)
		return
	}
	if failed := settle(current, errs, swallowed); failed {
		return
	}
	committed, err := t.commit(ctx, current)
	var cut *uncharged
	if !committed && !errors.As(err, &cut) && store.IsDatabaseFault(err) {
		r.interrupt(current, err)
		return
	}
	if !committed && len(current) > 1 && !errors.As(err, &cut) {
		repeatAlone(current) // a deferred constraint does not say whose row it was
		return
	}
	if committed {
		statements.Committed()
	}
	for _, m := range current {
		m.stored, m.err = committed, err
	}
}

// databaseFault returns the failure of a statement of the handler's transaction
// for which the database is to blame (contract 5.7); nil if there is none. Then the
// handler's errors say nothing about the handler, whatever they are: it may have
// wrapped the failure, returned another one, or ignored it. The exceptions are a
// call that may still be running, and a handler that poisoned or snoozed its
// message.
func databaseFault(statements *invoke.WatchedTx, errs []error) error {
	for _, err := range errs {
		if errors.Is(err, ErrStuck) || len(errs) == 1 && invoke.Decided(err) {
			return nil
		}
	}
	return statements.Fault(errors.Join(errs...), store.IsDatabaseFault)
}

// interruptCall is interrupt for a call that the handler has returned from: it may
// have said how long to wait.
func (r *runner) interruptCall(members []member, errs []error, fault error) {
	r.interrupt(members, fmt.Errorf("the database failed in the handler transaction: %w", fault))
	for i, m := range members {
		var (
			retryAfter *handler.RetryAfterError
			cut        *uncharged
		)
		if errors.As(errs[i], &retryAfter) && errors.As(m.err, &cut) {
			cut.delay = max(retryAfter.Delay, time.Microsecond)
		}
	}
}

// maxCollisions is how often an attempt is repeated at once because its
// transaction got in another's way. Then it waits, as after any other failure of
// the database.
const maxCollisions = 5

// interrupt ends attempts that the database cut short: nothing is charged. They
// run again at once after a deadlock or a serialization failure, else after a
// while.
func (r *runner) interrupt(members []member, reason error) {
	for _, m := range members {
		if store.IsSerialization(reason) && m.cause == nil && m.collisions < maxCollisions {
			m.collisions++
			m.repeat(false)
			continue
		}
		m.err = &uncharged{reason: reason, delay: r.interruptions.again(m, reason), visible: true}
	}
}

// endedBy ends attempts for which a step of ours in their transaction failed: the
// database's own failures are not the handler's.
func (r *runner) endedBy(members []member, err error) {
	if store.IsTransient(err) {
		r.interrupt(members, err)
		return
	}
	fail(members, err)
}

// nobodysFault: a batch's call failed as a whole, which does not say which
// message is to blame. All was rolled back, so each can meet its fate alone;
// but for a call that may still be running.
func nobodysFault(errs []error, swallowed error) bool {
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

// settle gives the members of one call their results and reports whether any
// has failed. Those that have not are then to run again, without the others.
func settle(members []member, errs []error, swallowed error) (failed bool) {
	for _, err := range errs {
		failed = failed || err != nil
	}
	if !failed && swallowed != nil {
		fail(members, swallowed)
		return true
	}
	if !failed {
		return false
	}
	for i, m := range members {
		if m.err = errs[i]; m.err == nil {
			m.repeat(false)
		}
	}
	return true
}

func fail(members []member, err error) {
	for _, m := range members {
		m.err = err
	}
}

// handlerTx is a transaction that handlers run in and that completes their
// statuses.
type handlerTx struct {
	*runner
	*invoke.Tx
}

func (r *runner) begun(tx *invoke.Tx, err error) (*handlerTx, error) {
	if err != nil {
		return nil, err
	}
	return &handlerTx{runner: r, Tx: tx}, nil
}

// complete writes the members' completions and returns those whose claims are
// current; the others are marked as fenced.
func (t *handlerTx) complete(members []member) (current []member, err error) {
	return t.each("complete", members, func(completions []store.Completion) ([]bool, error) {
		return t.store.CompleteTx(t.Ctx, t.DB, completions, t.now())
	})
}

// current returns the members whose claims are current; the others are marked as
// fenced.
func (t *handlerTx) current(members []member) (current []member, err error) {
	return t.each("check claims", members, func(completions []store.Completion) ([]bool, error) {
		return t.store.CurrentTx(t.Ctx, t.DB, completions)
	})
}

// each takes a step of our own for all members and tells for which it applied.
func (t *handlerTx) each(doing string, members []member, step func([]store.Completion) ([]bool, error)) (current []member, err error) {
	completions := make([]store.Completion, len(members))
	for i, m := range members {
		completions[i] = completionOf(m.claim, models.OutcomeProcessed)
	}
	var applied []bool
	err = t.Within(func() (err error) { applied, err = step(completions); return err })
	if err != nil {
		return nil, fmt.Errorf("%s in handler transaction: %w", doing, err)
	}
	for i, m := range members {
		if m.fenced = !applied[i]; applied[i] {
			current = append(current, m)
		}
	}
	return current, nil
}

// commit ends the transaction and reports whether it was committed; if not,
// err says what that means for its members.
func (t *handlerTx) commit(ctx context.Context, members []member) (committed bool, err error) {
	if err := t.Commit(); err != nil {
		return t.afterCommitError(ctx, members[0].claim, err)
	}
	return true, nil
}

// afterCommitError finds out what a failed commit did. If the database
// answered, it did not commit, and the handler is to blame (a swallowed SQL
// error, a deferred constraint). If the connection was lost nobody knows: the
// status row tells, because the completion is part of the transaction
// (contract 5.10); one row tells for all that share it.
func (r *runner) afterCommitError(ctx context.Context, c store.Claim, commitErr error) (committed bool, err error) {
	err = fmt.Errorf("commit handler transaction: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return false, err
	}
	// Between the lost commit and this reading the server may still be
	// working on it. A claim that is still ours after the row could be
	// locked is settled by the release that follows: it carries the version,
	// so if the commit wins the race against it, it changes nothing, and is
	// read back in its turn.
	states, readErr := r.states(ctx, c.StatusID)
	if readErr != nil {
		return false, &uncharged{reason: errors.Join(err, readErr), delay: time.Second, unknown: true}
	}
	if s, found := states[c.StatusID]; found && s.Completed && s.Version == c.Version+1 {
		return true, nil
	}
	return false, &uncharged{reason: err, delay: time.Second, unknown: true}
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
