package attempt

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
)

// databaseFault returns the failed statement's error if the database is to blame for a failure in
// the handler's transaction; nil otherwise. The handler's errors then say nothing about the
// handler: it may have wrapped the failure, returned another error, or ignored it. There are two
// exceptions: a call that may still be running, and a handler that poisoned or snoozed its message.
func databaseFault(watched *handlertx.WatchedTx, errs []error) error {
	for _, err := range errs {
		if errors.Is(err, ErrStuck) || len(errs) == 1 && decided(err) {
			return nil
		}
	}
	return watched.Fault(errors.Join(errs...), store.IsDatabaseFault)
}

// maxCollisions is how often an attempt is repeated at once after its transaction collided with
// another. After that it waits, as after any other database failure.
const maxCollisions = 5

// cutShort ends attempts that the database interrupted; nothing is charged. They run again at once
// after a deadlock or a serialization failure, and otherwise after a while.
func (r *Runner) cutShort(group []*Attempt, reason error) {
	for _, a := range group {
		if store.IsSerialization(reason) && a.Cause == nil && a.collisions < maxCollisions {
			a.collisions++
			a.repeat(false)
			continue
		}
		a.Err = &Uncharged{Reason: reason, Database: true}
	}
}

// cutCallShort is cutShort for a call that has returned: the handler may have said how long to
// wait.
func (r *Runner) cutCallShort(group []*Attempt, errs []error, fault error) {
	r.cutShort(group, fmt.Errorf("the database failed in the handler transaction: %w", fault))
	for i, a := range group {
		var (
			retryAfter *handler.RetryAfterError
			cut        *Uncharged
		)
		if errors.As(errs[i], &retryAfter) && errors.As(a.Err, &cut) {
			cut.Delay = max(retryAfter.Delay, time.Microsecond)
		}
	}
}

// stepFailed ends attempts whose step failed. Failures of the database are not charged to the
// handler.
func (r *Runner) stepFailed(group []*Attempt, err error) {
	if !isUncharged(err) && store.IsTransient(err) {
		r.cutShort(group, err)
		return
	}
	fail(group, err)
}
