package attempt

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
)

// databaseFault returns the failed statement's error if the database is to blame for a failure in the handler's
// transaction; nil otherwise. The handler's errors then say nothing about the handler: it may have wrapped the failure,
// returned another error, or ignored it. There are two exceptions: a call that may still be running, and a handler that
// poisoned or snoozed its message.
func databaseFault(t *handlertx.Tx, watched *handlertx.Guard, errs []error) error {
	for _, err := range errs {
		if errors.Is(err, ErrStuck) || len(errs) == 1 && decided(err) {
			return nil
		}
	}
	return t.Explain(watched.Fault(errors.Join(errs...), store.IsDatabaseFault))
}

// decided reports whether the handler's error alone decides the message's outcome, as Poison and Snooze do.
func decided(err error) bool {
	return errors.As(err, new(*handler.PoisonError)) || errors.As(err, new(*handler.SnoozeError))
}

// maxCollisions is how often an attempt is repeated at once after its transaction collided with another. After that it
// waits, as after any other database failure.
const maxCollisions = 5

// maxInterruptions is how many attempts of a message in a row the database may interrupt before they are charged.
const maxInterruptions = 3

// interrupt ends attempts that the database interrupted. They run again at once after a deadlock or a serialization
// failure, and otherwise after a while. They are not charged, unless the message itself seems to be the cause, see
// isAtFault.
func (r *Runner) interrupt(group []*Attempt, cut Cut) {
	cut.Database = true
	for _, a := range group {
		if store.IsSerialization(cut.Reason) && a.Cause == nil && a.collisions < maxCollisions {
			a.collisions++
			a.repeat(false)
			continue
		}
		own := cut
		if !store.IsCrashOfAnother(cut.Reason) {
			if len(group) == 1 && r.isAtFault(a, cut.Reason) {
				own.Charged = true
				own.Reason = fmt.Errorf("%d times in a row, while the database worked for others: %w", a.Interrupted+1, cut.Reason)
			}
			a.Interrupted, a.LastInterrupted = a.Interrupted+1, time.Now()
		}
		a.Err = &own
	}
}

// interruptBegin ends attempts whose handlers did not run, because the transaction could not begin or its first step
// failed. That no connection was free in time is no failure, neither of the handler nor of the database.
func interruptBegin(group []*Attempt, reason error) {
	for _, a := range group {
		a.Err = &Cut{Reason: reason, Database: !errors.Is(reason, handlertx.ErrInterrupted)}
	}
}

// interruptCall is interrupt for a call that has returned: the handler may have said how long to wait.
func (r *Runner) interruptCall(group []*Attempt, errs []error, fault error) {
	r.interrupt(group, Cut{Reason: fmt.Errorf("the database failed in the handler transaction: %w", fault)})
	for i, a := range group {
		retryAfter, asked := errors.AsType[*handler.RetryAfterError](errs[i])
		if cut, ok := errors.AsType[*Cut](a.Err); ok && asked {
			cut.Delay = max(retryAfter.Delay, time.Microsecond)
		}
	}
}

// isAtFault reports whether the message, and not the database, seems to be the cause of a failure of the database in
// the attempt's transaction (contract 5.7):
//
//	the database failed                     the message is to blame
//	up to maxInterruptions times in a row   never
//	by losing the connection                always: the database has begun this transaction since the
//	                                        last time, so it was not down all the while
//	in another way, such as a full disk     if another transaction of the same handler has been
//	                                        committed in this process since the last time
//
// A crash that another server process caused counts for nothing.
func (r *Runner) isAtFault(a *Attempt, reason error) bool {
	switch {
	case a.Interrupted < maxInterruptions:
		return false
	case store.IsConnectionLoss(reason):
		return true
	}
	return r.commits.since(a.Handler, a.LastInterrupted)
}

// stepFailed ends attempts whose step failed before the handler ran. Failures of the database are neither charged nor
// counted as interruptions: the message cannot be their cause.
func (r *Runner) stepFailed(group []*Attempt, err error) {
	switch {
	case isCut(err) || !store.IsTransient(err):
		fail(group, err)
	case store.IsSerialization(err):
		r.interrupt(group, Cut{Reason: err})
	default:
		interruptBegin(group, err)
	}
}

// commits remembers when a transaction of each handler was last committed in this process. It is safe for concurrent
// use.
type commits struct {
	last sync.Map // *handler.Handler to *atomic.Int64: nanoseconds since origin
}

// origin is the beginning of a monotonic clock.
var origin = time.Now()

func (c *commits) note(h *handler.Handler) {
	last, found := c.last.Load(h)
	if !found {
		last, _ = c.last.LoadOrStore(h, new(atomic.Int64))
	}
	last.(*atomic.Int64).Store(int64(time.Since(origin)))
}

func (c *commits) since(h *handler.Handler, t time.Time) bool {
	last, found := c.last.Load(h)
	return found && last.(*atomic.Int64).Load() > int64(t.Sub(origin))
}
