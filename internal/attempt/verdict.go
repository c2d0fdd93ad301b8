package attempt

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Verdict is the outcome of an attempt for a message and its handler.
type Verdict struct {
	Outcome handler.AttemptOutcome
	// Err is the error that failed or interrupted the attempt.
	Err error
	// Charged says that the attempt counts as a failure.
	Charged bool
	// Delay is how long the next attempt must wait. If the message was released, it is Cut's delay.
	Delay time.Duration
	// Cut is how the attempt was cut short; nil if it was not, or if the inbox itself interrupted it.
	Cut *Cut
}

// Verdict returns the outcome of the attempt (contract 5.5, 5.7, 5.8, 7.6). It is the only place that decides what a
// handler's error means.
//
// A handler that returned nil has completed, even if its context had ended. If the inbox interrupted the attempt, an
// error counts as a consequence of that: nothing is charged, unless the handler poisoned or snoozed.
func (a *Attempt) Verdict() (v Verdict) {
	if a.Err == nil {
		return Verdict{Outcome: handler.AttemptCompleted}
	}
	defer func() { // an error's Is and As may panic for any target
		if p := recover(); p != nil {
			v = a.failed(Recovered(fmt.Sprintf("the handler's error: %v", p)))
		}
	}()
	return a.failed(usable(a.Err))
}

func (a *Attempt) failed(err error) Verdict {
	var (
		beyond     *Unrecoverable
		poison     *handler.PoisonError
		snooze     *handler.SnoozeError
		retryAfter *handler.RetryAfterError
		cut        *Cut
	)
	timedOut := errors.Is(a.Cause, ErrTimeout)
	cancelled, ended := errors.AsType[*Cancelled](a.Cause)
	short := errors.As(err, &cut) && !timedOut && !ended
	uncharged := short && !cut.Charged
	switch {
	case !uncharged && (errors.As(err, &beyond) || handler.Undecodable(err)):
		return Verdict{Outcome: handler.AttemptPoisoned, Err: err}
	case !uncharged && errors.As(err, &poison):
		return Verdict{Outcome: handler.AttemptPoisoned, Err: err, Charged: true}
	case !uncharged && errors.As(err, &snooze):
		return Verdict{Outcome: handler.AttemptSnoozed, Delay: snooze.Delay}
	case isInterruption(a.Cause), isInterruption(err):
		return Verdict{Outcome: handler.AttemptReleased, Err: err}
	case uncharged:
		return Verdict{Outcome: handler.AttemptReleased, Err: err, Delay: cut.Delay, Cut: cut}
	}
	if timedOut {
		err = fmt.Errorf("handler timed out after %s: %w", a.Timeout, err)
	}
	if ended {
		err = fmt.Errorf("%w: %w", cancelled, err)
	}
	v := Verdict{Outcome: handler.AttemptFailed, Err: err, Charged: true}
	if short {
		v.Cut = cut
	}
	if a.Failures+1 >= max(a.Policy.MaxRetries, 1) {
		v.Outcome = handler.AttemptPoisoned
		return v
	}
	switch {
	case short:
		v.Delay = cmp.Or(cut.Delay, a.Policy.Delay(a.Failures+1))
	case errors.As(err, &retryAfter):
		v.Delay = retryAfter.Delay
	default:
		v.Delay = a.Policy.Delay(a.Failures + 1)
	}
	return v
}

// Unrecoverable marks a failure of the stored message, not of the handler: no attempt can ever succeed (contract 5.7).
type Unrecoverable struct{ Reason error }

func (e *Unrecoverable) Error() string { return e.Reason.Error() }

// Unwrap returns the reason.
func (e *Unrecoverable) Unwrap() error { return e.Reason }

// Cut marks an attempt that was cut short before or after the handler's call. It is repeated after a while.
type Cut struct {
	Reason error
	// Delay is how long the repeat waits at least; 0 leaves that to the caller.
	Delay time.Duration
	// Database says that the database failed.
	Database bool
	// Shown says that the status shows the reason until its next attempt ends, as it does where the database failed.
	Shown bool
	// Unknown says that the attempt's transaction may still be committed.
	Unknown bool
	// Charged says that the attempt counts as a failure all the same, see Runner.isAtFault.
	Charged bool
}

func (e *Cut) Error() string { return e.Reason.Error() }

// Unwrap returns the reason.
func (e *Cut) Unwrap() error { return e.Reason }

func isCut(err error) bool { return errors.As(err, new(*Cut)) }

// Interruption is why the inbox itself ends an attempt, for example a stop. It is the cause of the handler's context,
// or the error of Call.MayStart. Interruptions are distinguished by their address.
type Interruption struct{ reason string }

// NewInterruption returns an Interruption that differs from all others.
func NewInterruption(reason string) *Interruption { return &Interruption{reason} }

func (i *Interruption) Error() string { return i.reason }

func isInterruption(err error) bool { return errors.As(err, new(*Interruption)) }
