package processor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
)

// runTxGroup runs a transactional handler for several messages, one call after
// the other, in one transaction (contract 5.11). Each stands behind a savepoint
// of its own, with its completion: what fails is undone alone. What hurts the
// transaction itself, or may be due to the company, decides nothing: a timeout,
// a cancellation (it may have cost the connection), a lost connection, a
// deadlock, a commit that is refused (a deferred constraint does not say whose
// row it was). All then run again alone, uncharged, and the culprit meets its
// fate there.
func (r *runner) runTxGroup(ctx context.Context, members []member, w watcher) {
	t, err := r.begin(ctx)
	if err != nil {
		fail(members, err)
		return
	}
	defer t.Rollback()
	passed := make([]member, 0, len(members))
	for i, m := range members {
		if ctx.Err() != nil { // what has passed is kept
			repeatAlone(members[i:])
			break
		}
		switch err := t.runMember(ctx, m, w); {
		case errors.Is(err, ErrStuck):
			// It may still be running: not again beside itself.
			m.err = err
			repeatAlone(members[:i], members[i+1:])
			return
		case err != nil:
			repeatAlone(members)
			return
		}
		if m.err == nil && !m.fenced {
			passed = append(passed, m)
		}
	}
	if len(passed) == 0 {
		return
	}
	committed, err := t.commit(ctx, passed)
	var cut *uncharged
	for _, m := range passed {
		switch {
		case committed:
			m.stored = true
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
			if !m.fenced { // stale for good
				m.repeat(true)
			}
		}
	}
}

// runMember runs one member behind its savepoint. The error is what ends the
// whole group; the member's own failure, undone, is in its err.
func (t *handlerTx) runMember(ctx context.Context, m member, w watcher) error {
	defer func(started time.Time) { m.duration = time.Since(started) }(time.Now())
	if err := t.control("SAVEPOINT inbox_member"); err != nil {
		return err
	}
	current, err := t.complete([]member{m})
	if err != nil {
		return err
	}
	if len(current) == 0 {
		return nil
	}
	ctx, cancel := m.limited(ctx)
	defer cancel()
	session, statements := invoke.Watch(ctx, t.DB)
	err = t.call(handler.ContextWithDB(ctx, session), session, current, w)[0]
	if err == nil {
		err = statements.Swallowed()
	}
	m.cause = context.Cause(ctx)
	switch {
	case err == nil:
		return t.control("RELEASE SAVEPOINT inbox_member")
	case errors.Is(err, ErrStuck) || ctx.Err() != nil || store.IsTransient(err):
		return err
	}
	m.err = err
	return t.control("ROLLBACK TO SAVEPOINT inbox_member", "RELEASE SAVEPOINT inbox_member")
}

// control sends statements that steer the transaction, past the application's
// GORM logger.
func (t *handlerTx) control(statements ...string) error {
	return t.Within(func() error {
		for _, statement := range statements {
			if _, err := t.DB.Statement.ConnPool.ExecContext(t.Ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", strings.ToLower(statement), err)
			}
		}
		return nil
	})
}
