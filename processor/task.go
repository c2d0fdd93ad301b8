package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// task is a claimed status in this process, with the result of its last attempt.
type task struct {
	attempt.Attempt

	claim  store.Claim
	policy *policy
	queued time.Time   // when it was queued in this process
	report func(error) // reports to the circuit breaker that admitted it
	waited bool        // whether its wait since it became due was measured
	// messageType and transport are the message's, and are kept after forgetMessage.
	messageType, transport string
	rateKey                string // for which its call counts, if the handler has a rate by key
	// until is when a drain's claim counts as stuck; zero for a worker's claim.
	until time.Time
}

func newTask(c store.Claim, h *handler.Handler, p *policy) *task {
	t := &task{Attempt: attempt.Attempt{Handler: h, Policy: p.Policy, Timeout: p.Timeout, Failures: c.ErrorCount},
		claim: c, policy: p}
	if m := c.Message; m != nil {
		t.messageType, t.transport = m.Type, m.TransportName
		if p.rateKey != nil {
			t.rateKey = rateKeyOf(p.rateKey, m)
		}
	}
	if c.InterruptedCount > 0 { // by any process; it has waited at least this long since
		t.Interrupted = c.InterruptedCount
		t.LastInterrupted = time.Now().Add(-attempt.MinBackoff(c.InterruptedCount, p.maxRetryDelay))
	}
	return t
}

// rateKeyOf returns the key of a message for its handler's rate; "" if it has none. Messages for which find panics, or
// that cannot be read, share a key. A sealed content is left out: to open it would hold up the claims of all handlers.
func rateKeyOf(find func(handler.RawMessage) string, m *models.Message) (key string) {
	err := routine.Protect("the key of its rate", func() error {
		p, seal, err := properties.ParseSealed(m.SerializedProperties)
		content := m.Content
		if seal.Key != "" {
			content = nil
		}
		key = find(handler.RawMessage{Channel: p.Channel, ID: m.ID, Type: m.Type, Source: m.Source, Content: content,
			ContentType: m.ContentType, Transport: m.TransportName, Properties: p, OrderingKey: m.OrderingKey})
		return err
	})
	if err != nil {
		return "\x00" // an application's key hardly is
	}
	return key
}

// claimedBefore returns how often the status was claimed before and released, and at least 1 if it has failed. Each
// claim, and each result, raises the version by one.
func (t *task) claimedBefore() int {
	return max(int(t.claim.Version-firstClaim)/2-t.claim.ErrorCount, min(t.claim.ErrorCount, 1))
}

// number returns the number of the present attempt, counted from 1.
func (t *task) number() int { return t.claim.ErrorCount + t.claim.AbandonedCount + 1 }

// deliver builds the handler's input from the stored message. The error is what the attempt ends with: an
// *attempt.Unrecoverable if none can ever succeed, a Cut if another process may open the message, or the Sealer's.
func (t *task) deliver(ctx context.Context, sealer sealing.Sealer) error {
	m := t.claim.Message
	if m == nil {
		return &attempt.Unrecoverable{Reason: fmt.Errorf("message %q is deleted", t.claim.MessageID)}
	}
	parsed, seal, err := properties.ParseSealed(m.SerializedProperties)
	if err != nil {
		return &attempt.Unrecoverable{Reason: fmt.Errorf("message %q: %w", t.claim.MessageID, err)}
	}
	content, err := sealer.Open(ctx, sealing.IdentityOf(m, parsed.Channel), seal, m.Content)
	if err != nil {
		err = fmt.Errorf("message %q: %w", t.claim.MessageID, err)
		if errors.As(err, new(*sealing.MissingError)) {
			return &attempt.Cut{Reason: err, Shown: true, Delay: min(sealerDelay, t.policy.maxRetryDelay)}
		}
		return err
	}
	t.SetDelivery(handler.Delivery{
		Metadata: handler.Metadata{
			ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType, Transport: m.TransportName,
			Properties: parsed, OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt,
			OccurredAt: properties.OccurredAt(parsed), HandlerKey: t.claim.HandlerKey, Attempt: t.number(),
		},
		Content: content,
	})
	return nil
}

// sealerDelay is how long a sealed message waits for a process that can open it.
const sealerDelay = 15 * time.Second

// MayGroup reports whether the task may run together with others. A task that could harm others
// runs alone: one with which workers have vanished or which the database has interrupted, one that cut an
// earlier call with others short and, for a batch handler, one that has failed.
func (t *task) MayGroup() bool {
	return t.policy.groupSize > 1 && !t.Alone && t.claim.AbandonedCount+t.claim.InterruptedCount == 0 &&
		(t.Handler.BatchSize() == 1 || t.claim.ErrorCount == 0 || t.policy.runSize > 0)
}

// QueuedAt returns when the task was queued.
func (t *task) QueuedAt() time.Time { return t.queued }

// Size returns the bytes of its message's content and properties.
func (t *task) Size() int { return t.claim.Size() }

// forgetMessage drops what only an attempt needs.
func (t *task) forgetMessage() {
	t.Forget()
	t.claim.Message = nil
}

// policy is how one handler's attempts run and are retried: by the handler's own options, or else by the inbox's.
type policy struct {
	attempt.Policy
	breaker *breaker // nil if it has none
	// groupSize is how many messages may share a call or a transaction.
	groupSize int
	// runSize is how many messages a call may get with those that follow in their lanes; 0 if it gets none of these.
	runSize int
	// maxRetryDelay is the inbox's, which limits the wait of an interrupted status.
	maxRetryDelay time.Duration
	// lanes is the rule for the handler's lanes; nil if it is not ordered.
	lanes *store.LaneRule
	// rateKey names the key of a message's rate; nil if the handler's rate is not by key.
	rateKey func(m handler.RawMessage) string
	// redactor redacts error texts. It is the inbox's.
	redactor redaction.Redactor
}

func newPolicy(
	h *handler.Handler, opts Options, inboxDelay func(errorCount int) time.Duration, wake func(handlerKeys ...string),
) *policy {
	p := &policy{
		Policy:    attempt.NewPolicy(h, opts.HandlerTimeout, opts.MaxRetries, opts.MaxRetryDelay, inboxDelay),
		groupSize: max(h.BatchSize(), h.TxGroup()), maxRetryDelay: opts.MaxRetryDelay, rateKey: h.RateKey(),
	}
	if settings, own := h.CircuitBreaker(); own {
		p.breaker = newBreaker(settings, func() { wake(h.Key()) })
	}
	if n := h.RunSize(); n > 0 {
		p.groupSize, p.runSize = max(n/runHeads, 1), n
	}
	if h.Ordered() {
		p.lanes = &store.LaneRule{SkipPoisoned: h.SkipsPoisoned()}
		for _, key := range h.Keys() {
			p.lanes.Handlers = append(p.lanes.Handlers, store.LaneHandler(key))
		}
	}
	return p
}

// rules returns the handler's rules for the scheduler. The due messages of ordered handlers cannot be counted, because
// rows of a lane may wait for each other. The due messages of handlers with legacy keys cannot be counted either,
// because each key is claimed with its own quota.
func (p *policy) rules(h *handler.Handler) scheduler.Rules {
	r := scheduler.Rules{Key: h.Key(), Concurrency: h.Concurrency(), GroupSize: p.groupSize, Counted: p.lanes == nil &&
		len(h.LegacyKeys()) == 0}
	if p.breaker != nil {
		r.Circuit = p.breaker.state
	}
	return r
}

// group is a unit that runs in one slot: a single attempt, the messages of one batch call, or the messages that share a
// transaction.
type group struct {
	handler *handler.Handler
	tasks   []*task
	bytes   int // of its messages, when it was formed
	started time.Time
	overdue bool // it no longer holds a slot; guarded by the pool's lock

	ctx      context.Context // of its calls, see owner.within
	end      context.CancelFunc
	mayStart func(context.Context) error

	report func(error) // reports to the circuit breaker that admitted a batch

	// one saves allocations for a group of one, the usual case.
	one struct {
		attempt [1]*attempt.Attempt
		result  [1]result
	}
}

func newGroup(tasks []*task) *group {
	g := &group{handler: tasks[0].Handler, tasks: tasks}
	for _, t := range tasks {
		g.bytes += t.Size()
	}
	return g
}

// deliverable builds the handler's input for each task and returns the attempts that have one. The others have ended
// with an error. If ctx has ended meanwhile, that is the cause.
func (g *group) deliverable(ctx context.Context, sealer sealing.Sealer) []*attempt.Attempt {
	for _, t := range g.tasks {
		if t.Err != nil { // it belongs to another channel
			continue
		}
		if err := t.deliver(ctx, sealer); err != nil {
			t.Err, t.Cause = err, context.Cause(ctx)
		}
	}
	if g.isRun() {
		g.releaseAfterFailure()
	}
	attempts := slices.Grow(g.one.attempt[:0], len(g.tasks))
	for _, t := range g.tasks {
		if t.Err == nil {
			attempts = append(attempts, &t.Attempt)
		}
	}
	return attempts
}

// completions returns the completions of some attempts of the group, which must be in the group's order.
func (g *group) completions(attempts []*attempt.Attempt) []store.Completion {
	completions := make([]store.Completion, 0, len(attempts))
	for _, t := range g.tasks {
		if len(completions) < len(attempts) && &t.Attempt == attempts[len(completions)] {
			completions = append(completions, completionOf(t.claim, models.OutcomeProcessed))
		}
	}
	return completions
}

// again returns the tasks that must run once more, reset for it.
func (g *group) again() []*task {
	var again []*task
	for _, t := range g.tasks {
		if t.Again {
			again = append(again, t)
			t.Reset()
		}
	}
	return again
}

// stuck reports whether a call of the group was given up and has not returned, as far as the group knows.
func (g *group) stuck() bool {
	return slices.ContainsFunc(g.tasks, func(t *task) bool { return errors.Is(t.Err, ErrStuck) })
}

// runner runs the attempts of groups.
type runner struct {
	*shared
	attempts      *attempt.Runner
	measure       *telemetry.Instruments
	interruptions *interruptions
	sealer        sealing.Sealer

	busy atomic.Int64 // running attempts
}

// run runs a group to its end.
func (r *runner) run(ctx context.Context, g *group, c attempt.Call) {
	r.busy.Add(int64(len(g.tasks)))
	defer r.busy.Add(-int64(len(g.tasks)))
	r.noteWaits(ctx, g)
	attempts := g.deliverable(ctx, r.sealer)
	if len(attempts) == 0 {
		return
	}
	if g.handler.Kind() == handler.Transactional {
		c.Steps = r.steps(g)
	}
	r.attempts.Run(ctx, attempts, c)
	if g.isRun() {
		g.releaseAfterFailure()
	}
	for _, t := range g.tasks {
		r.interruptions.note(t)
	}
}

// noteWaits measures how long the tasks were due before their first attempt in this process.
func (r *runner) noteWaits(ctx context.Context, g *group) {
	if !r.measure.TimesWaits(ctx) {
		return
	}
	now := r.clock.Now()
	for _, t := range g.tasks {
		if !t.waited { // otherwise it runs again because of others in its group
			t.waited = true
			r.measure.Waited(ctx, t.claim.HandlerKey, now.Sub(t.claim.Due))
		}
	}
}

// steps returns the steps that complete a group's statuses inside the handler's transaction. A stale claim is found
// before the handler runs. While the handler runs, the row locks keep recovery away.
func (r *runner) steps(g *group) *attempt.Steps {
	each := func(doing string, t *handlertx.Tx, attempts []*attempt.Attempt,
		do func([]store.Completion) ([]bool, error)) ([]*attempt.Attempt, error) {
		completions := g.completions(attempts)
		var applied []bool
		err := t.Within(func() (err error) { applied, err = do(completions); return err })
		if err != nil {
			return nil, fmt.Errorf("%s in handler transaction: %w", doing, err)
		}
		current := make([]*attempt.Attempt, 0, len(attempts))
		for i, a := range attempts {
			if applied[i] {
				current = append(current, a)
			}
		}
		return current, nil
	}
	return &attempt.Steps{
		Write: func(_ context.Context, t *handlertx.Tx, attempts []*attempt.Attempt) ([]*attempt.Attempt, error) {
			return each("complete", t, attempts, func(c []store.Completion) ([]bool, error) {
				return r.store.CompleteTx(t.Ctx, t.DB, c, r.clock.Now())
			})
		},
		Check: func(_ context.Context, t *handlertx.Tx, attempts []*attempt.Attempt) ([]*attempt.Attempt, error) {
			return each("check claims", t, attempts, func(c []store.Completion) ([]bool, error) {
				return r.store.CurrentTx(t.Ctx, t.DB, c)
			})
		},
		Committed: func(ctx context.Context, a *attempt.Attempt) (bool, error) {
			i := slices.IndexFunc(g.tasks, func(t *task) bool { return &t.Attempt == a })
			ref := g.tasks[i].claim.Ref
			states, err := r.store.States(ctx, []store.Ref{ref})
			s, found := states[ref.StatusID]
			return found && s.Completed && s.Version == ref.Version+1, err
		},
	}
}

// ErrStuck is the failure of an attempt whose handler ignored its cancelled context for
// StuckHandlerGrace. The handler may still be running.
var ErrStuck = attempt.ErrStuck

// PanicError is the failure of an attempt during which the handler, or other code that ran for it, panicked.
type PanicError = attempt.PanicError

// resultsOf returns the results of a group's finished tasks and reports them to the circuit
// breaker. Tasks that run again have no result. It ends the spans of all tasks.
func (p *Processor) resultsOf(g *group) []result {
	results := slices.Grow(g.one.result[:0], len(g.tasks))
	for _, t := range g.tasks {
		if t.Again {
			if t.report != nil {
				t.report(errNeutral)
				t.report = nil
			}
			continue
		}
		r := p.resultOf(t)
		t.NoteOutcome(r.outcome, r.failure)
		results = append(results, r)
	}
	for _, t := range g.tasks { // after the loop above, because a call may have been for several tasks
		t.EndSpan()
	}
	g.note(results)
	return results
}

// resultOf returns the result of one task. A panic in here, such as one of the application's clock
// or redaction, fails the attempt and does not end the process.
func (p *Processor) resultOf(t *task) (r result) {
	judge := func() result { return result{task: t, verdict: t.judge(p.clock.Now())} }
	defer func() {
		if v := recover(); v != nil {
			t.Err = attempt.Recovered(v)
			r = judge()
		}
	}()
	return judge()
}

func (p *Processor) reportOverdue(g *group) {
	p.log.Error("inbox: handler ignores its cancelled context", zap.String(telemetry.FieldHandlerKey, g.handler.Key()),
		zap.String(telemetry.FieldMessageID, g.tasks[0].claim.MessageID), zap.Int(telemetry.FieldMessages, len(g.tasks)))
}

// superseded is the outcome of a status that ends without an attempt.
const superseded handler.AttemptOutcome = "superseded"

// verdict is the effect of one attempt on its status.
type verdict struct {
	outcome handler.AttemptOutcome
	failure error
	// settlement is the change to store; nil if the outcome is completed or superseded.
	settlement *store.Settlement
	next       time.Time
}

// Causes for which the processor interrupts an attempt.
var (
	errStopping = attempt.NewInterruption("inbox is stopping")
	errFenced   = attempt.NewInterruption("worker lost its heartbeat")
	errLockLost = attempt.NewInterruption("worker lost the lock of the inbox")
	// errSuspended releases attempts that would begin before the next heartbeat.
	errSuspended = attempt.NewInterruption("worker has sent no heartbeat since its machine was suspended or its clock was set")
)

// Causes for which a claim is released without an attempt.
var (
	errPaused  = attempt.NewInterruption("its handler is paused")
	errWaited  = attempt.NewInterruption("it waited too long for a slot, other workers may be free")
	errCircuit = attempt.NewInterruption("its handler's circuit breaker is open")
	errNoCalls = attempt.NewInterruption("no call of its handler may start here: its calls do not return, or a limit is used up")
	errRate    = errors.New("the rate of its key is used up")
	errLate    = attempt.NewInterruption("its claim waited too long behind others")
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
		if v.Cut.Database || v.Cut.Shown { // the status shows the reason until its next attempt ends
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
	about := redact.Value{HandlerKey: t.claim.HandlerKey, MessageID: t.claim.MessageID, Type: t.messageType}
	text := store.SanitizeError(t.policy.redactor.Error(about, err.Error()))
	return &text
}

func poisonedBy(settle store.Settlement, text *string, err error) verdict {
	settle.Poisoned, settle.LastError = true, text
	return verdict{outcome: handler.AttemptPoisoned, failure: err, settlement: &settle}
}

// releasedResult returns the result of a claim that is released without an attempt, and why.
func releasedResult(t *task, why *attempt.Interruption, now time.Time) result {
	t.Err, t.Cause = why, why
	return result{task: t, verdict: t.judge(now)}
}

// postponed returns the result of a claim that is released without an attempt until a delay is over, and why.
func postponed(t *task, why error, delay time.Duration, now time.Time) result {
	t.Err = &attempt.Cut{Reason: why, Delay: delay}
	return result{task: t, verdict: t.judge(now)}
}

// note sets how long an interrupted attempt must wait for its repeat.
func (i *interruptions) note(t *task) {
	if cut, ok := errors.AsType[*attempt.Cut](t.Err); ok && cut.Database && !cut.Charged {
		cut.Delay = cmp.Or(cut.Delay, i.again(t, cut.Reason))
	}
}

// interruptions counts how many attempts of a status in a row the database interrupted, also before
// they began. Each repeat waits twice as long as the one before, up to MaxRetryDelay. While any
// status is affected, the condition is logged and part of the health.
//
// The counts are of this process only; a status's row counts the ones that may be the message's fault. If another
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
