package attempt

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
)

// runTxGroup runs a transactional handler for several messages, one call after the other, in one transaction.
// Steps.Check first checks their claims, all in one statement: a stale claim is found before its handler runs. Each
// call has its own savepoint, so a failure is undone alone. The attempts that passed are written in one statement right
// before the commit. Until then none of their rows is locked: a handler that hangs delays only itself. If another
// worker has taken over a claim by then, everything is undone and each runs alone.
//
// The savepoint of a call is released when the next call's savepoint begins. Savepoints that the handler has set go
// with it, so no call can roll back to a savepoint of another. The release and the new savepoint are sent together with
// the first statement of the next handler.
//
// A call's settings for the transaction (SET LOCAL ROLE) would affect the calls after it, the written results, and the
// commit. So such a call is undone, and it and the calls after it run again alone.
//
// A failure that affects the transaction itself, or that may be due to the sharing, decides nothing: a timeout, a
// cancellation (it may have cost the connection), a lost connection, a deadlock, a refused commit (a deferred
// constraint does not say whose row violated it). All then run again alone, uncharged, and the one at fault fails
// there.
func (r *Runner) runTxGroup(ctx context.Context, all []*Attempt, c Call) {
	t, err := r.begin(ctx, c)
	if err != nil {
		interruptBegin(all, err)
		return
	}
	defer t.RollbackUntil(c.until())
	group, err := c.Steps.Check(ctx, t, all)
	if err != nil {
		repeatAlone(all)
		return
	}
	markStale(all, group)
	passed := make([]*Attempt, 0, len(group))
	for i, a := range group {
		if ctx.Err() != nil { // the calls that passed are kept
			repeatAlone(group[i:])
			break
		}
		switch err := r.runMember(ctx, t, i == 0, a, c); {
		case errors.Is(err, ErrStuck):
			// The handler may still be running, so do not run it again beside itself.
			a.Err = err
			repeatAlone(group[:i], group[i+1:])
			return
		case err != nil:
			repeatAlone(group)
			return
		}
		if a.Err == nil && a.watched.Sets() {
			if err := undoMember(t); err != nil {
				repeatAlone(group)
				return
			}
			repeatAlone(group[i:])
			break
		}
		if a.Err == nil {
			passed = append(passed, a)
		}
	}
	if len(passed) == 0 {
		return
	}
	if current, err := c.Steps.Write(ctx, t, passed); err != nil || len(current) < len(passed) {
		repeatAlone(passed) // the one whose claim was taken over is found when it runs alone
		return
	}
	committed, err := r.commit(ctx, t, passed, c)
	if committed {
		r.commits.note(passed[0].Handler)
	}
	for _, a := range passed {
		switch {
		case committed:
			a.Stored = true
			a.watched.Committed()
		case errors.Is(err, errInterrupted):
			a.Alone = true
		default:
			a.repeat(true)
		}
	}
}

// runMember makes one call with its own savepoint. It returns an error that ends the whole group. A failure of the
// attempt is undone and set in its Err.
func (r *Runner) runMember(ctx context.Context, t *handlertx.Tx, first bool, a *Attempt, c Call) error {
	defer func(started time.Time) { a.Duration = time.Since(started) }(time.Now())
	begin := []string{"RELEASE SAVEPOINT inbox_member", "SAVEPOINT inbox_member"}
	if first {
		begin = begin[1:]
	}
	if err := t.Within(func() error { return handlertx.SteerLater(t.Ctx, t.DB, begin...) }); err != nil {
		return err
	}
	one := []*Attempt{a}
	ctx, cancel := limited(StartSpan(ctx, r.Instruments, a), a.Timeout)
	defer cancel(nil)
	session, watched := handlertx.Watch(ctx, t.DB, r.StatementTimeout)
	a.watched = watched
	err := r.call(ctx, cancel, session, session, one, c)[0]
	a.Cause = context.Cause(ctx)
	if fault := databaseFault(t, watched, []error{err}); fault != nil {
		return fault
	}
	if err == nil {
		err = watched.Swallowed()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrStuck) || isInterruption(err) || ctx.Err() != nil || store.IsTransient(err):
		return err
	}
	a.Err = err
	return undoMember(t)
}

// undoMember undoes what the last call wrote and set, unless its savepoint was refused.
func undoMember(t *handlertx.Tx) error {
	if err := handlertx.Steered(t.DB); err != nil { // this is not the handler's fault
		return err
	}
	return t.Within(func() error { return handlertx.Steer(t.Ctx, t.DB, "ROLLBACK TO SAVEPOINT inbox_member") })
}
