package attempt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

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
	// the version of the claim, or write the same marker. So if the commit succeeds after all, their conflict reveals
	// it.
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
