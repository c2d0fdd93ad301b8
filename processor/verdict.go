package processor

import (
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// superseded is the outcome of a status that ends without an attempt.
const superseded handler.AttemptOutcome = "superseded"

// verdict is the effect of one attempt on its status.
type verdict struct {
	outcome handler.AttemptOutcome
	failure error
	// settlement is what to store, unless the outcome is completed or superseded.
	settlement store.Settlement
	next       time.Time
}

// Causes for which the processor interrupts an attempt.
var (
	errStopping = attempt.NewInterruption("inbox is stopping")
	errFenced   = attempt.NewInterruption("worker lost its heartbeat")
	errLockLost = attempt.NewInterruption("worker lost the lock of the inbox")
)

// Causes for which a claim is released without an attempt.
var (
	errPaused     = attempt.NewInterruption("its handler is paused")
	errCircuit    = attempt.NewInterruption("its handler's circuit breaker is open")
	errUnreturned = attempt.NewInterruption("its handler's calls do not return")
	errLate       = attempt.NewInterruption("its claim waited too long behind others")
)

// judge returns the effect of the attempt's verdict on the status. A status that is due again is
// due at least one microsecond later: otherwise a drain whose clock stands still would claim it
// again and again.
func (t *task) judge(now time.Time) verdict {
	v := t.Verdict()
	if v.Outcome == handler.AttemptCompleted {
		return verdict{outcome: v.Outcome}
	}
	c := t.claim
	settle := store.Settlement{
		StatusID: c.StatusID, HandlerKey: c.HandlerKey, Version: c.Version, Locator: c.Locator,
		ErrorCount: c.ErrorCount, AbandonedCount: 0, // any finished attempt resets it
	}
	if v.Charged {
		settle.ErrorCount++
	}
	next := now.Add(max(v.Delay, time.Microsecond))
	switch v.Outcome {
	case handler.AttemptPoisoned:
		return poisonedBy(settle, t.lastError(v.Err), v.Err)
	case handler.AttemptReleased:
		settle.AbandonedCount = c.AbandonedCount
		if v.Cut == nil {
			return verdict{outcome: v.Outcome, failure: v.Err, settlement: settle}
		}
		if v.Cut.Database { // the status shows the reason until its next attempt ends
			settle.LastError = t.lastError(v.Err)
		}
		next = now.Add(v.Delay)
	case handler.AttemptFailed:
		settle.LastError = t.lastError(v.Err)
	}
	settle.NextAttemptAt = &next
	return verdict{outcome: v.Outcome, failure: v.Err, settlement: settle, next: next}
}

// lastError returns an error's text as the status keeps it. It is redacted before it is cut, so
// that no half of a secret remains.
func (t *task) lastError(err error) *string {
	about := redact.Value{HandlerKey: t.claim.HandlerKey, MessageID: t.claim.MessageID}
	if t.claim.Message != nil {
		about.Type = t.claim.Message.Type
	}
	text := store.SanitizeError(t.policy.redactor.Error(about, err.Error()))
	return &text
}

func poisonedBy(settle store.Settlement, text *string, err error) verdict {
	settle.Poisoned, settle.LastError = true, text
	return verdict{outcome: handler.AttemptPoisoned, failure: err, settlement: settle}
}

// notRun returns the result of a claim that is released without an attempt, and why.
func notRun(t *task, why *attempt.Interruption, now time.Time) result {
	t.Err, t.Cause = why, why
	return result{task: t, verdict: t.judge(now)}
}

// abandon returns what recovery does to a claim whose worker vanished. The claim is released with a
// backoff, so that suspects drift apart, or poisoned when too many workers have vanished while
// running it.
func (o Options) abandon(r store.Ref, now time.Time) store.Settlement {
	s := store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version, Locator: r.Locator,
		ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount + 1}
	if s.AbandonedCount >= o.MaxAbandoned {
		text := "workers vanish while running it"
		s.Poisoned, s.LastError = true, &text
		return s
	}
	next := now.Add(attempt.Backoff(s.AbandonedCount, o.MaxRetryDelay))
	s.NextAttemptAt = &next
	return s
}

// abandonStuck is abandon for a drain's claim, which has no worker. The first time the status is
// due at once: it has waited for StuckMessageThreshold already, and a program that is killed during
// a drain is usually not the message's fault.
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
