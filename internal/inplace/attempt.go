package inplace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// run is one attempt under way.
type run struct {
	*Runner
	*task
	at    partition
	hard  context.Context // ends when there is no more time for handlers
	ran   bool            // the handler was called
	cause error           // with which its context ended
	span  *telemetry.Attempt
}

// try makes one attempt and notes in the task what came of it. The error says
// that there was no time to begin it, or that ctx has ended before it was over.
func (r *Runner) try(ctx context.Context, stopping <-chan struct{}, at partition, t *task) error {
	if !r.enter(ctx, stopping, at) {
		return envelope.ErrInterrupted
	}
	t.delivery.Attempt = t.failures + 1
	a := &run{Runner: r, task: t, at: at, hard: ctx}
	started := time.Now()
	tracing := ctx
	if r.cfg.Instruments.Traces() {
		tracing, a.span = r.cfg.Instruments.StartAttempt(ctx, t.handler.Key(), t.delivery.Metadata)
		defer a.span.End()
	}
	err := a.guarded(tracing)
	<-r.slots
	return a.settle(ctx, err, time.Since(started))
}

// enter waits until an attempt may begin and takes a slot for it, or reports
// false when stopping is closed or ctx has ended first.
//
// Both are looked at again once there is a slot, and so are stuck calls: while
// this one waited, the call that had the slot may have been given up as stuck.
// It is counted as left behind before it gives its slot back, so whoever gets
// that slot sees it. Then the slot is given back: nobody is to wait for a stuck
// call with it.
func (r *Runner) enter(ctx context.Context, stopping <-chan struct{}, at partition) bool {
	for r.stuck.await(ctx, stopping, at) {
		select {
		case r.slots <- struct{}{}:
		case <-stopping:
			return false
		case <-ctx.Done():
			return false
		}
		if over := closed(stopping) || ctx.Err() != nil; !over && !r.stuck.blocks(at) {
			return true
		}
		<-r.slots
	}
	return false
}

// guarded runs the attempt behind the guard. A panic that is not the handler's
// (a guard's, a driver's) is its failure too: it must not end the process. Nor
// must that of an error which is asked for its text.
func (a *run) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = invoke.Recovered(v)
		}
	}()
	if a.cfg.Guard == nil {
		err = a.once(ctx, "", nil)
	} else {
		err = a.cfg.Guard.Run(ctx, a.handler, a.delivery, a.once)
	}
	if err != nil {
		_ = err.Error()
	}
	return err
}

// once is the Attempt that a Guard gets. What goes wrong after it has succeeded is
// not for the end of the handler's context.
func (a *run) once(ctx context.Context, id string, first func(ctx context.Context, tx *gorm.DB) error) error {
	if a.delivery.ID == "" {
		a.delivery.ID = id
	}
	err := a.attempt(ctx, first)
	if err == nil {
		a.cause = nil
	}
	return err
}

func (a *run) attempt(ctx context.Context, first func(ctx context.Context, tx *gorm.DB) error) error {
	if a.handler.Kind() == handler.Transactional || first != nil {
		for collisions := 0; ; collisions++ {
			err := a.inTx(ctx, first)
			if !store.IsSerialization(err) || !uncharges(err) || collisions == maxCollisions || ctx.Err() != nil {
				return err
			}
		}
	}
	ctx, cancel := invoke.Limited(ctx, a.policy.Timeout)
	defer cancel()
	return a.call(ctx, a.cfg.DB, nil)
}

// maxCollisions is how often an attempt is repeated at once because its
// transaction got in another's way. Then it is put off, uncharged, as after any
// other failure of the database.
const maxCollisions = 5

// inTx runs the attempt in a transaction of its own, which is committed before
// the record is acknowledged: what it writes is there as a whole or not at all,
// at least once. No begin and no rollback outlasts the time for handlers.
func (a *run) inTx(ctx context.Context, first func(ctx context.Context, tx *gorm.DB) error) error {
	t, err := invoke.BeginUntil(ctx, a.cfg.DB, a.cfg.StatementTimeout, a.cfg.TxIsolation)
	if err != nil {
		return &uncharged{err}
	}
	defer t.RollbackUntil(a.hard)
	if first != nil {
		switch err := a.first(ctx, t, first); {
		case errors.Is(err, ErrDone):
			if failed := commit(t); failed != nil {
				return failed
			}
			if a.unanswered != nil {
				a.unanswered.Committed()
			}
			return err
		case err != nil:
			return cutShort(err)
		}
	}
	limited, cancel := invoke.Limited(ctx, a.policy.Timeout)
	defer cancel()
	session, statements := invoke.Watch(limited, t.DB, a.cfg.StatementTimeout)
	err = a.call(limited, session, session)
	if fault := statements.Fault(err, store.IsDatabaseFault); fault != nil && !errors.Is(err, invoke.ErrStuck) && !invoke.Decided(err) {
		return &uncharged{fmt.Errorf("the database failed in the handler transaction: %w", fault)}
	}
	if err != nil {
		return err
	}
	if err := statements.Swallowed(); err != nil {
		return err
	}
	if err := commit(t); err != nil {
		if store.OutcomeUnknown(err) {
			a.unanswered = statements
		}
		return err
	}
	statements.Committed()
	return nil
}

func commit(t *invoke.Tx) error {
	err := t.Commit()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("commit handler transaction: %w", err)
	if store.OutcomeUnknown(err) {
		// It may have been committed: the next attempt repeats it then, or the
		// guard finds its marker. No fault of the handler's.
		return &uncharged{err}
	}
	return cutShort(err)
}

// first gives the guard's own part of the transaction its deadline.
func (a *run) first(ctx context.Context, t *invoke.Tx, first func(ctx context.Context, tx *gorm.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	return first(ctx, t.DB.WithContext(ctx))
}

// call runs the handler's own code, unless the time for handlers has run out
// while the guard or the database had the attempt.
func (a *run) call(ctx context.Context, session, tx *gorm.DB) error {
	if err := a.hard.Err(); err != nil {
		return err
	}
	a.ran = true
	delivery := a.delivery
	// The body belongs to the handler, which may change it; others get it too,
	// and the raw record, whose memory it is, may have to be kept.
	delivery.Content = bytes.Clone(delivery.Content)
	call := a.stuck.begin(a.at, a.handler.Key())
	err := invoke.Call(handler.ContextWithDB(ctx, session), tx, a.handler, a.cfg.Middleware, a.cfg.Running, invoke.Patience{
		Grace: a.cfg.StuckHandlerGrace, GiveUp: a.hard.Done(),
		Overdue: func() {
			call.overdue()
			a.log.Error("inbox: handler ignores its cancelled context", a.fields()...)
		},
		Returned: call.returned,
	}, delivery)[0]
	a.cause = context.Cause(ctx)
	call.ended(errors.Is(err, invoke.ErrStuck))
	return err
}

// Uncharged marks an error as one of what stands around the handler: a Guard
// returns its own troubles with it, such as a store that cannot be reached.
// Nothing is charged, and the record is not acknowledged: the guard is asked
// again after a pause that grows, for as long as it takes.
func Uncharged(err error) error { return &uncharged{err} }

// uncharged marks an attempt that the database, or a guard, cut short before or
// after the handler's own part.
type uncharged struct{ reason error }

func (e *uncharged) Error() string { return e.reason.Error() }
func (e *uncharged) Unwrap() error { return e.reason }

func uncharges(err error) bool {
	var cut *uncharged
	return errors.As(err, &cut)
}

// cutShort tells the database's own trouble from everything else: the former
// is not the handler's failure.
func cutShort(err error) error {
	if store.IsTransient(err) {
		return &uncharged{err}
	}
	return err
}
