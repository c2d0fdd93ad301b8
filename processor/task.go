package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// task is a claimed status in this process: what its attempts need, and the result of the last one.
type task struct {
	attempt.Attempt

	claim  store.Claim
	policy *policy
	queued time.Time      // when it was queued in this process
	report func(error)    // reports to the circuit breaker that admitted it
	waited bool           // whether its wait since it became due was measured
	kept   models.Message // what is left of the message after forgetContent
	// until is when a drain's claim counts as stuck; zero for a worker's claim.
	until time.Time
}

func newTask(c store.Claim, h *handler.Handler, p *policy) *task {
	t := &task{Attempt: attempt.Attempt{Handler: h, Policy: p.Policy, Timeout: p.Timeout, Failures: c.ErrorCount},
		claim: c, policy: p}
	if c.InterruptedCount > 0 { // by any process; it has waited at least this long since
		t.Interrupted = c.InterruptedCount
		t.LastInterrupted = time.Now().Add(-attempt.MinBackoff(c.InterruptedCount, p.maxRetryDelay))
	}
	return t
}

// number returns the number of the present attempt, counted from 1.
func (t *task) number() int { return t.claim.ErrorCount + t.claim.AbandonedCount + 1 }

// runner runs the attempts of groups.
type runner struct {
	attempts      *attempt.Runner
	store         store.Completer
	now           func() time.Time
	measure       *telemetry.Instruments
	interruptions *interruptions

	busy atomic.Int64 // running attempts
}

// run runs a group to its end.
func (r *runner) run(ctx context.Context, g *group, c attempt.Call) {
	r.busy.Add(int64(len(g.tasks)))
	defer r.busy.Add(-int64(len(g.tasks)))
	r.noteWaits(ctx, g)
	attempts := g.deliverable()
	if len(attempts) == 0 {
		return
	}
	if g.handler.Kind() == handler.Transactional {
		c.Steps = r.steps(g)
	}
	r.attempts.Run(ctx, attempts, c)
	for _, t := range g.tasks {
		r.interruptions.note(t)
	}
}

// noteWaits measures how long the tasks were due before their first attempt in this process.
func (r *runner) noteWaits(ctx context.Context, g *group) {
	if !r.measure.TimesWaits(ctx) {
		return
	}
	now := r.now()
	for _, t := range g.tasks {
		if !t.waited { // otherwise it runs again because of others in its group
			t.waited = true
			r.measure.Waited(ctx, t.claim.HandlerKey, now.Sub(t.claim.Due))
		}
	}
}

// deliverable builds the handler's input for each task and returns the attempts that have one. The
// others have failed for good.
func (g *group) deliverable() []*attempt.Attempt {
	attempts := slices.Grow(g.one.attempt[:0], len(g.tasks))
	for _, t := range g.tasks {
		if err := t.deliver(); err != nil {
			t.Err = &attempt.Unrecoverable{Reason: err}
			continue
		}
		attempts = append(attempts, &t.Attempt)
	}
	return attempts
}

// deliver builds the handler's input from the stored message. An error means that no attempt can ever succeed.
func (t *task) deliver() error {
	m := t.claim.Message
	if m == nil {
		return fmt.Errorf("message %q is deleted", t.claim.MessageID)
	}
	parsed, err := properties.Parse(m.SerializedProperties)
	if err != nil {
		return fmt.Errorf("message %q: %w", t.claim.MessageID, err)
	}
	t.SetDelivery(handler.Delivery{
		Metadata: handler.Metadata{
			ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType, Transport: m.TransportName,
			Properties: parsed, OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt,
			OccurredAt: properties.OccurredAt(parsed), HandlerKey: t.claim.HandlerKey, Attempt: t.number(),
		},
		Content: m.Content,
	})
	return nil
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
				return r.store.CompleteTx(t.Ctx, t.DB, c, r.now())
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

// ErrStuck is the failure of an attempt whose handler ignored its cancelled context for
// StuckHandlerGrace. The handler may still be running.
var ErrStuck = attempt.ErrStuck

// PanicError is the failure of an attempt during which the handler, or other code that ran for it, panicked.
type PanicError = attempt.PanicError

// note sets how long an interrupted attempt must wait for its repeat.
func (i *interruptions) note(t *task) {
	if t.Err == nil {
		return
	}
	var cut *attempt.Cut
	if !errors.As(t.Err, &cut) {
		return
	}
	if cut.Database && !cut.Charged {
		cut.Delay = cmp.Or(cut.Delay, i.again(t, cut.Reason))
	}
}

// group is what runs in one slot: a single attempt, the messages of one batch call, or the messages
// that share a transaction.
type group struct {
	handler *handler.Handler
	tasks   []*task
	bytes   int // of its messages, when it was formed
	started time.Time
	overdue bool // it no longer holds a slot; guarded by the pool's lock

	ctx      context.Context // what it runs in, see owner.within
	end      context.CancelFunc
	mayStart func(context.Context) error

	report func(error) // reports to the circuit breaker that admitted a batch

	// one holds what a group of one needs, the usual case, without further allocations.
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

// MayGroup reports whether the task may run together with others. A task that could harm others
// runs alone: one with which workers have vanished or which the database has interrupted, one that cut an
// earlier call with others short and, for a batch handler, one that has failed.
func (t *task) MayGroup() bool {
	return t.policy.groupSize > 1 && !t.Alone && t.claim.AbandonedCount+t.claim.InterruptedCount == 0 &&
		(t.Handler.BatchSize() == 1 || t.claim.ErrorCount == 0)
}

// QueuedAt returns when the task was queued.
func (t *task) QueuedAt() time.Time { return t.queued }

// Size returns the bytes of its message's content and properties.
func (t *task) Size() int { return t.claim.Size() }

// forgetContent drops what only an attempt needs.
func (t *task) forgetContent() {
	t.Forget()
	if m := t.claim.Message; m != nil {
		t.kept = models.Message{Type: m.Type, TransportName: m.TransportName}
		t.claim.Message = &t.kept
	}
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
	for _, t := range g.tasks {
		if errors.Is(t.Err, ErrStuck) {
			return true
		}
	}
	return false
}
