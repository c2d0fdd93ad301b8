package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// result is a finished attempt with its verdict, to be stored.
type result struct {
	*task
	verdict
	// tried says that an earlier write returned an error. That write may have been committed all the same.
	tried bool
	// found says that the attempt's commit got no response and was found by reading back.
	found bool
}

// ended reports whether the status is completed or poisoned.
func (r result) ended() bool {
	return r.outcome == handler.AttemptCompleted || r.outcome == superseded || r.outcome == handler.AttemptPoisoned
}

// mayHaveCommitted reports whether the commit of the attempt's transaction got no response and was
// not visible when the status was read back. It may still have committed later.
func (r result) mayHaveCommitted() bool {
	var cut *attempt.Cut
	return errors.As(r.failure, &cut) && cut.Unknown
}

// writeGroup stores a batch together or, if the database refuses that, each result alone: a status
// that the database refuses (a damaged page, a trigger of the application) must not block the
// others. left are the results to put aside; refused is how many of them are refused rather than
// locked. An error means that the outcome of the whole batch is unknown.
func (c *completer) writeGroup(
	ctx context.Context, batch []result, careful bool,
) (left []result, refused int, err error) {
	left, err = c.write(ctx, batch, careful)
	if err == nil || store.IsTransient(err) {
		return left, 0, err
	}
	for i := range batch { // one of the two statements may have been committed
		batch[i].tried = true
	}
	for i, r := range batch {
		waiting, err := c.write(ctx, []result{r}, true)
		switch {
		case err == nil:
			left = append(left, waiting...)
			continue
		case store.IsTransient(err): // the same would happen to the others
			c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)-i))
			return append(left, batch[i:]...), refused + len(batch) - i, nil
		}
		left, refused = append(left, r), refused+1
		c.storing.Begin(nil, err, zap.String(telemetry.FieldHandlerKey, r.claim.HandlerKey),
			zap.String(telemetry.FieldMessageID, r.claim.MessageID))
	}
	return left, refused, nil
}

// write stores one batch: the completions in one statement, everything else in another. If careful,
// it skips rows that others have locked and returns their results.
func (c *completer) write(ctx context.Context, batch []result, careful bool) (left []result, err error) {
	locked := store.AwaitLocked
	if careful {
		locked = store.SkipLocked
	}
	var (
		completions = make([]store.Completion, 0, len(batch))
		completes   = make([]int, 0, len(batch))
		settlements []store.Settlement
		settles     []int
		applied     = make([]bool, len(batch))
	)
	for i, r := range batch {
		switch {
		case r.Stored:
			applied[i] = true
		case r.Stale:
		case r.outcome == handler.AttemptCompleted:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeProcessed)), append(completes, i)
		case r.outcome == superseded:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeSuperseded)), append(completes, i)
		default:
			settlements, settles = append(settlements, *r.settlement), append(settles, i)
		}
	}
	stmt, cancel := context.WithTimeout(ctx, c.statementTimeout)
	defer cancel()
	if len(completions) > 0 {
		done, err := c.store.Complete(stmt, completions, c.now(), locked)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[completes[k]] = ok
		}
	}
	if len(settlements) > 0 {
		done, err := c.store.Settle(stmt, settlements, locked)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[settles[k]] = ok
		}
	}
	waiting, err := c.readBack(stmt, batch, applied, careful)
	if err != nil {
		return nil, err
	}
	var ended []result
	for i, r := range batch {
		if applied[i] && r.claim.Lane != nil {
			ended = append(ended, r)
		}
	}
	c.lanes.runNext(stmt, ended, c.reserve)
	for i, r := range batch {
		if waiting[i] {
			left = append(left, r)
			continue
		}
		if r.found { // only now, so that nothing waits for the application's hooks
			r.NotifyCommitted()
		}
		c.settled(ctx, r, applied[i])
	}
	return left, nil
}

// readBack reads the rows that the write did not change, before they are counted as stale:
//
//   - A row that a careful write skipped and that still has the claim's version is locked: waiting.
//   - If an earlier write of the result returned an error, it may have committed without a response. So
//     a row that is one version ahead of the claim, in the state we wrote, counts as our own write.
//   - If the attempt's own commit had no response, a row completed at the next version counts as
//     completed by the attempt: only the holder of the claim can complete it at that version.
func (c *completer) readBack(
	ctx context.Context, batch []result, applied []bool, careful bool,
) (waiting []bool, err error) {
	waiting = make([]bool, len(batch))
	var refs []store.Ref
	for i, r := range batch {
		if !applied[i] && !r.Stale && (careful || r.tried || r.mayHaveCommitted()) {
			refs = append(refs, r.claim.Ref)
		}
	}
	if len(refs) == 0 {
		return waiting, nil
	}
	states, err := c.store.States(ctx, refs)
	if err != nil {
		return nil, err
	}
	for i, r := range batch {
		if applied[i] || r.Stale {
			continue
		}
		s, found := states[r.claim.StatusID]
		switch {
		case !found:
		case careful && s.Version == r.claim.Version:
			waiting[i] = true
		case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version+1:
			applied[i], batch[i].verdict = true, verdict{outcome: handler.AttemptCompleted}
			batch[i].found = true
		case r.tried:
			applied[i] = s.Version == r.claim.Version+1 && !s.Processing &&
				s.Completed == (r.outcome == handler.AttemptCompleted || r.outcome == superseded) &&
				s.Poisoned == (r.outcome == handler.AttemptPoisoned)
		}
	}
	return waiting, nil
}

// superseded is the outcome of a status that ends without an attempt.
const superseded handler.AttemptOutcome = "superseded"

// verdict is the effect of one attempt on its status.
type verdict struct {
	outcome handler.AttemptOutcome
	failure error
	// settlement is what to store; nil if the outcome is completed or superseded.
	settlement *store.Settlement
	next       time.Time
}

// Causes for which the processor interrupts an attempt.
var (
	errStopping = attempt.NewInterruption("inbox is stopping")
	errFenced   = attempt.NewInterruption("worker lost its heartbeat")
	errLockLost = attempt.NewInterruption("worker lost the lock of the inbox")
	// errSuspended releases what would begin before the next heartbeat.
	errSuspended = attempt.NewInterruption("worker has sent no heartbeat since its machine was suspended or its clock was set")
)

// Causes for which a claim is released without an attempt.
var (
	errPaused     = attempt.NewInterruption("its handler is paused")
	errWaited     = attempt.NewInterruption("it waited too long for a slot, other workers may be free")
	errCircuit    = attempt.NewInterruption("its handler's circuit breaker is open")
	errUnreturned = attempt.NewInterruption("its handler's calls do not return")
	errLate       = attempt.NewInterruption("its claim waited too long behind others")
)

// judge returns the effect of the attempt's verdict on the status. A status that is due again is due at least one
// microsecond later: otherwise a drain whose clock stands still would claim it again and again.
func (t *task) judge(now time.Time) verdict {
	v := t.Verdict()
	if v.Outcome == handler.AttemptCompleted {
		return verdict{outcome: v.Outcome}
	}
	c := t.claim
	settle := store.Settlement{
		StatusID: c.StatusID, HandlerKey: c.HandlerKey, Version: c.Version,
		ErrorCount: c.ErrorCount, // any finished attempt resets the other counts
	}
	if v.Cut != nil {
		settle.InterruptedCount = t.Interrupted
	}
	if v.Charged {
		settle.ErrorCount++
	}
	next := now.Add(max(v.Delay, time.Microsecond))
	switch v.Outcome {
	case handler.AttemptPoisoned:
		settle.FailedAt = now
		return poisonedBy(settle, t.lastError(v.Err), v.Err)
	case handler.AttemptReleased:
		settle.AbandonedCount, settle.InterruptedCount = c.AbandonedCount, t.Interrupted
		if v.Cut == nil {
			return verdict{outcome: v.Outcome, failure: v.Err, settlement: &settle}
		}
		if v.Cut.Database { // the status shows the reason until its next attempt ends
			settle.LastError = t.lastError(v.Err)
		}
		next = now.Add(v.Delay)
	case handler.AttemptFailed:
		settle.LastError, settle.FailedAt = t.lastError(v.Err), now
	}
	settle.NextAttemptAt = &next
	return verdict{outcome: v.Outcome, failure: v.Err, settlement: &settle, next: next}
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
	return verdict{outcome: handler.AttemptPoisoned, failure: err, settlement: &settle}
}

// notRun returns the result of a claim that is released without an attempt, and why.
func notRun(t *task, why *attempt.Interruption, now time.Time) result {
	t.Err, t.Cause = why, why
	return result{task: t, verdict: t.judge(now)}
}

// abandon returns what recovery does to a claim whose worker vanished. The claim is released with a backoff, so that
// suspects drift apart, or poisoned when too many workers have vanished while running it.
func (o Options) abandon(r store.Ref, now time.Time) store.Settlement {
	s := store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
		ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount + 1,
		InterruptedCount: r.InterruptedCount, FailedAt: now}
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
	return store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: outcome}
}

// interruptions counts how many attempts of a status in a row the database interrupted, also before
// they began. Each repeat waits twice as long as the one before, up to MaxRetryDelay. While any
// status is affected, the condition is logged and part of the health.
//
// The counts are of this process only; a status's row has those that may be the message's fault. If another
// worker takes over a status, it is forgotten here some time after its repeat was due.
type interruptions struct {
	condition *condition.Condition
	maxDelay  time.Duration

	mu       sync.Mutex
	statuses map[string]interruption
	pruneAt  time.Time
}

type interruption struct {
	times   int
	expires time.Time
}

// forgetAfter is how long a status is remembered after its repeat was due. If another worker has
// claimed it, this process never learns the result.
const forgetAfter = time.Minute

// again counts one more interruption of a status and returns how long its repeat must wait.
func (i *interruptions) again(t *task, reason error) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.prune()
	if i.statuses == nil {
		i.statuses = map[string]interruption{}
	}
	times := max(i.statuses[t.claim.StatusID].times+1, t.Interrupted)
	delay := attempt.Backoff(times, i.maxDelay)
	i.statuses[t.claim.StatusID] = interruption{times: times, expires: time.Now().Add(delay + forgetAfter)}
	i.condition.Begin(nil, reason,
		zap.String(telemetry.FieldHandlerKey, t.claim.HandlerKey), zap.String(telemetry.FieldMessageID, t.claim.MessageID))
	return delay
}

// forget forgets a status, because an attempt of it has ended.
func (i *interruptions) forget(statusID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, met := i.statuses[statusID]; met {
		delete(i.statuses, statusID)
		i.prune()
	}
}

// check ends the condition if the last affected status has expired.
func (i *interruptions) check() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.prune()
}

func (i *interruptions) prune() {
	if now := time.Now(); !now.Before(i.pruneAt) {
		i.pruneAt = now.Add(time.Second)
		for id, s := range i.statuses {
			if now.After(s.expires) {
				delete(i.statuses, id)
			}
		}
	}
	if len(i.statuses) == 0 {
		i.condition.End(nil)
	}
}
