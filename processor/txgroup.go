package processor

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
)

// runTxGroup runs a transactional handler for several messages, one call after
// the other, in one transaction (contract 5.11). Their claims are looked
// at first, all in one statement: a stale one is found before its handler runs.
// Each call stands behind a savepoint of its own: what fails is undone alone.
// Those that passed are completed in one statement before the commit. Until then
// no row of theirs is locked: a handler that hangs holds up nobody but itself.
// Should somebody have taken one over meanwhile, all is undone, and each runs
// alone, as below.
//
// A member's savepoint is released when the next one's begins: with it go those
// that the handler has set, so that no member can roll back to one of another's.
// Both travel with the first statement of the next one's handler.
//
// What hurts the transaction itself, or may be due to the company, decides
// nothing: a timeout, a cancellation (it may have cost the connection), a lost
// connection, a deadlock, a commit that is refused (a deferred constraint does
// not say whose row it was). All then run again alone, uncharged, and the
// culprit meets its fate there.
func (r *runner) runTxGroup(ctx context.Context, all []member, w watcher) {
	t, err := r.begun(invoke.Begin(ctx, r.db, r.statementTimeout, r.txIsolation))
	if err != nil {
		r.interrupt(all, err)
		return
	}
	defer t.Rollback()
	members, err := t.current(all)
	if err != nil {
		repeatAlone(all)
		return
	}
	passed := make([]member, 0, len(members))
	for i, m := range members {
		if ctx.Err() != nil { // what has passed is kept
			repeatAlone(members[i:])
			break
		}
		switch err := t.runMember(ctx, i == 0, m, w); {
		case errors.Is(err, ErrStuck):
			// It may still be running: not again beside itself.
			m.err = err
			repeatAlone(members[:i], members[i+1:])
			return
		case err != nil:
			repeatAlone(members)
			return
		}
		if m.err == nil {
			passed = append(passed, m)
		}
	}
	if len(passed) == 0 {
		return
	}
	if current, err := t.complete(passed); err != nil || len(current) < len(passed) {
		for _, m := range passed {
			m.fenced = false // whose claim was taken over finds out alone
		}
		repeatAlone(passed)
		return
	}
	committed, err := t.commit(ctx, passed)
	var cut *uncharged
	for _, m := range passed {
		switch {
		case committed:
			m.stored = true
			m.statements.Committed()
		case errors.As(err, &cut):
			m.err, m.alone = err, true
		default:
			m.repeat(true)
		}
	}
}

func repeatAlone(parts ...[]member) {
	for _, part := range parts {
		for _, m := range part {
			m.repeat(true)
		}
	}
}

// runMember runs one member behind its savepoint. The error is what ends the
// whole group; the member's own failure, undone, is in its err.
func (t *handlerTx) runMember(ctx context.Context, first bool, m member, w watcher) error {
	defer func(started time.Time) { m.duration = time.Since(started) }(time.Now())
	begin := []string{"RELEASE SAVEPOINT inbox_member", "SAVEPOINT inbox_member"}
	if first {
		begin = begin[1:]
	}
	if err := t.Within(func() error { return invoke.SteerLater(t.Ctx, t.DB, begin...) }); err != nil {
		return err
	}
	ctx, cancel := m.limited(t.traced(ctx, []member{m}))
	defer cancel()
	session, statements := invoke.Watch(ctx, t.DB, t.statementTimeout)
	m.statements = statements
	err := t.call(handler.ContextWithDB(ctx, session), session, []member{m}, w)[0]
	m.cause = context.Cause(ctx)
	if fault := databaseFault(statements, []error{err}); fault != nil {
		return fault
	}
	if err == nil {
		err = statements.Swallowed()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrStuck) || unstarted(err) || ctx.Err() != nil || store.IsTransient(err):
		return err
	}
	if err := invoke.Steered(t.DB); err != nil { // not the handler's fault
		return err
	}
	m.err = err
	return t.Within(func() error { return invoke.Steer(t.Ctx, t.DB, "ROLLBACK TO SAVEPOINT inbox_member") })
}
