package processor

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// Outcomes of an attempt, as hooks and logs name them.
const (
	completed = "completed"
	failed    = "failed"
	poisoned  = "poisoned"
	snoozed   = "snoozed"
	released  = "released"
	// superseded ends a status without an attempt.
	superseded = "superseded"
)

// verdict is what one attempt does to its status.
type verdict struct {
	outcome string
	failure error
	// settlement is what to store unless the outcome is completed.
	settlement store.Settlement
	next       time.Time
}

// unrecoverable marks a failure that lies in what is stored, not in the
// handler: poisoned at once, no error charged (contract 5.7).
type unrecoverable struct{ reason error }

func (e *unrecoverable) Error() string { return e.reason.Error() }
func (e *unrecoverable) Unwrap() error { return e.reason }

// uncharged marks an attempt that the database cut short before or after the
// handler's own part; it is repeated after a while.
type uncharged struct {
	reason error
	delay  time.Duration
	// visible: the status shows the reason until its next attempt ends.
	visible bool
	// unknown: its transaction may yet be committed.
	unknown bool
}

func (e *uncharged) Error() string { return e.reason.Error() }
func (e *uncharged) Unwrap() error { return e.reason }

// Causes with which the processor cancels an attempt.
var (
	errStopping = errors.New("inbox is stopping")
	errFenced   = errors.New("worker lost its heartbeat")
	errLockLost = errors.New("worker lost the lock of the inbox")
	errTimeout  = invoke.ErrTimeout
)

// unstarted reports whether an attempt's call was not begun because its worker
// must take itself for dead.
func unstarted(err error) bool { return errors.Is(err, errFenced) || errors.Is(err, errLockLost) }

// judge decides from an attempt's error, and from the cause its context was
// cancelled with, what becomes of the status (contract 5.5, 5.7, 5.8).
//
// nil always completes, even in spite of a cancelled context. When the
// processor interrupted the attempt, an error is taken for the interruption's
// echo and nothing is charged, unless the handler poisoned or snoozed.
func judge(a *attempt, err error, cause error, now time.Time) verdict {
	if err == nil {
		return verdict{outcome: completed}
	}
	c := a.claim
	settle := store.Settlement{
		StatusID: c.StatusID, Version: c.Version, Locator: c.Locator,
		ErrorCount: c.ErrorCount, AbandonedCount: 0, // any finished attempt resets it
	}
	var (
		beyond     *unrecoverable
		poison     *handler.PoisonError
		snooze     *handler.SnoozeError
		retryAfter *handler.RetryAfterError
		cut        *uncharged
	)
	switch {
	case errors.As(err, &beyond), handler.Undecodable(err):
		return poisonedBy(settle, a.lastError(err), err)
	case errors.As(err, &poison):
		settle.ErrorCount++
		return poisonedBy(settle, a.lastError(err), err)
	case errors.As(err, &snooze):
		// At least a microsecond ahead: a drain with a clock that stands
		// still never meets the status again.
		return putOff(snoozed, settle, nil, now.Add(max(snooze.Delay, time.Microsecond)))
	case errors.Is(cause, errStopping), errors.Is(cause, errFenced), errors.Is(cause, errLockLost), unstarted(err):
		settle.AbandonedCount = c.AbandonedCount
		return verdict{outcome: released, failure: err, settlement: settle}
	case errors.As(err, &cut) && !errors.Is(cause, errTimeout):
		settle.AbandonedCount = c.AbandonedCount
		if cut.visible {
			settle.LastError = a.lastError(err)
		}
		return putOff(released, settle, err, now.Add(cut.delay))
	}
	if errors.Is(cause, errTimeout) {
		err = fmt.Errorf("handler timed out after %s: %w", a.timeout, err)
	}
	settle.ErrorCount++
	if settle.ErrorCount >= max(a.policy.MaxRetries, 1) {
		return poisonedBy(settle, a.lastError(err), err)
	}
	var delay time.Duration
	if errors.As(err, &retryAfter) {
		delay = retryAfter.Delay
	} else {
		delay = a.policy.Delay(settle.ErrorCount)
	}
	delay = max(delay, time.Microsecond)
	settle.LastError = a.lastError(err)
	return putOff(failed, settle, err, now.Add(delay))
}

// lastError is an error's text as the status keeps it: redacted before it is cut, so
// that no half of a secret is left (contract 3.6, 11.6).
func (a *attempt) lastError(err error) *string {
	about := redact.Value{HandlerKey: a.claim.HandlerKey, MessageID: a.claim.MessageID}
	if a.claim.Message != nil {
		about.Type = a.claim.Message.Type
	}
	text := store.SanitizeError(a.policy.redactor.Error(about, err.Error()))
	return &text
}

func poisonedBy(settle store.Settlement, text *string, err error) verdict {
	settle.Poisoned, settle.LastError = true, text
	return verdict{outcome: poisoned, failure: err, settlement: settle}
}

func putOff(outcome string, settle store.Settlement, err error, next time.Time) verdict {
	settle.NextAttemptAt = &next
	return verdict{outcome: outcome, failure: err, settlement: settle, next: next}
}

// interrupted gives back a claim that was never run.
func interrupted(a *attempt, now time.Time) result {
	return result{attempt: a, verdict: judge(a, errStopping, errStopping, now)}
}

// abandon is what recovery does to a claim whose worker vanished: released
// with a backoff of its own, so that suspects drift apart, or poisoned when it
// took too many workers with it (contract 5.9).
func (o Options) abandon(r store.Ref, now time.Time) store.Settlement {
	s := store.Settlement{StatusID: r.StatusID, Version: r.Version, Locator: r.Locator, ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount + 1}
	if s.AbandonedCount >= o.MaxAbandoned {
		text := "workers vanish while running it"
		s.Poisoned, s.LastError = true, &text
		return s
	}
	next := now.Add(invoke.Backoff(s.AbandonedCount, o.MaxRetryDelay))
	s.NextAttemptAt = &next
	return s
}

// abandonStuck is abandon for a claim without a worker, a drain's. The first
// time it is due at once: it has waited for StuckMessageThreshold already, and
// a program that is ended in the middle of a drain is no suspect's doing.
func (o Options) abandonStuck(r store.Ref, now time.Time) store.Settlement {
	s := o.abandon(r, now)
	if s.NextAttemptAt != nil && r.AbandonedCount == 0 {
		s.NextAttemptAt = &now
	}
	return s
}

func completionOf(c store.Claim, outcome models.Outcome) store.Completion {
	return store.Completion{StatusID: c.StatusID, Version: c.Version, Locator: c.Locator, Outcome: outcome}
}
