package processor

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// attempt is one run of one handler for one claimed status.
type attempt struct {
	claim   store.Claim
	handler *handler.Handler
	policy  *policy
	timeout time.Duration // 0: none
	alone   bool          // it must not share a call or a transaction with others

	report func(error) // tells the circuit breaker that has let it run

	// Set by the group's goroutine before it is announced as finished.
	err        error
	cause      error
	stored     bool              // a transactional handler's completion is committed already
	statements *invoke.WatchedTx // of a transactional handler: its part of the transaction, which a batch shares
	fenced     bool              // the claim was stale, nothing was run or everything rolled back
	again      bool              // it has no result and is to run again at once
	collisions int               // how often it ran again because its transaction got in another's way
	duration   time.Duration
	waited     bool               // how long it was due is measured
	span       *telemetry.Attempt // of its call, which others may share; nil if that is not traced
}

// runner runs attempts.
type runner struct {
	db               *gorm.DB
	store            store.Store
	now              func() time.Time
	measure          *telemetry.Instruments
	middleware       []handler.Middleware
	statementTimeout time.Duration
	txIsolation      sql.IsolationLevel
	interruptions    *interruptions
	stuckGrace       time.Duration
	running          *invoke.Running

	busy atomic.Int64 // attempts that run
}

// watcher is told about a handler that ignores its cancelled context
// (contract 5.4). Both are called from the attempt's goroutines.
type watcher struct {
	// overdue: it did not return within a second.
	overdue func()
	// returned: it did so at last, after the attempt was given up.
	returned func()
	// mayStart is asked right before each call. Its error says why the worker must
	// take itself for dead; the attempt is released without a call then.
	mayStart func() error
}

// ErrStuck is the failure of an attempt whose handler ignored its cancelled
// context for StuckHandlerGrace. The handler may still be running.
var ErrStuck = invoke.ErrStuck

// PanicError is the failure of an attempt whose handler panicked; its text,
// with the stack, is kept as last error.
type PanicError = invoke.PanicError

// run executes a group to its end. It returns whatever the handler does:
// panics and runtime.Goexit are failures, and a handler that does not return
// is given up StuckHandlerGrace after its context was cancelled.
//
// A panic that is not the handler's (a driver's, a plugin's) is its failure
// too: it must not end the process.
func (r *runner) run(ctx context.Context, g *group, w watcher) {
	r.busy.Add(int64(len(g.attempts)))
	defer r.busy.Add(-int64(len(g.attempts)))
	started := time.Now()
	r.noteWaits(ctx, g)
	members := g.deliverable()
	if len(members) > 0 {
		if err := protect(func() { r.runMembers(ctx, members, w) }); err != nil {
			r.crashed(members, err)
		}
	}
	for _, a := range g.attempts {
		if a.duration == 0 {
			a.duration = time.Since(started)
		}
	}
}

// noteWaits measures how long attempts were due before they begin.
func (r *runner) noteWaits(ctx context.Context, g *group) {
	if !r.measure.TimesWaits(ctx) {
		return
	}
	now := r.now()
	for _, a := range g.attempts {
		if !a.waited { // else it runs again, for others' sake
			a.waited = true
			r.measure.Waited(ctx, a.claim.HandlerKey, now.Sub(a.claim.Due))
		}
	}
}

// crashed settles members whose attempt panicked outside the handler.
func (r *runner) crashed(members []member, err error) {
	for _, m := range members {
		m.stored, m.again = false, false
		if members[0].handler.TxGroup() > 1 && len(members) > 1 {
			m.repeat(true)
		} else {
			m.err = err
		}
	}
}

func (r *runner) runMembers(ctx context.Context, members []member, w watcher) {
	h := members[0].handler
	switch {
	case h.Kind() != handler.Transactional:
		r.runPlain(ctx, members, w)
	case len(members) > 1 && h.TxGroup() > 1:
		r.runTxGroup(ctx, members, w)
	default:
		r.runTx(ctx, members, w)
	}
}

// runPlain runs one call outside any transaction.
func (r *runner) runPlain(ctx context.Context, members []member, w watcher) {
	ctx, cancel := members[0].limited(r.traced(ctx, members))
	defer cancel()
	errs := r.call(handler.ContextWithDB(ctx, r.db), nil, members, w)
	for i, m := range members {
		m.err, m.cause = errs[i], context.Cause(ctx)
	}
}

// member is an attempt with its input.
type member struct {
	*attempt
	delivery handler.Delivery
}

// limited applies the attempt's timeout.
func (a *attempt) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return invoke.Limited(ctx, a.timeout)
}

// deliverable makes the input of each attempt; those of which none can be made
// have failed for good.
func (g *group) deliverable() []member {
	members := make([]member, 0, len(g.attempts))
	for _, a := range g.attempts {
		d, err := deliver(a.claim)
		if err != nil {
			a.err = &unrecoverable{err}
			continue
		}
		members = append(members, member{a, d})
	}
	return members
}

// deliver makes the handler's input of what is stored. An error means that
// no attempt can ever succeed.
func deliver(c store.Claim) (handler.Delivery, error) {
	m := c.Message
	if m == nil {
		return handler.Delivery{}, fmt.Errorf("message %q is deleted", c.MessageID)
	}
	properties, err := handler.ParseProperties(m.SerializedProperties)
	if err != nil {
		return handler.Delivery{}, fmt.Errorf("message %q: %w", c.MessageID, err)
	}
	return handler.Delivery{
		Metadata: handler.Metadata{
			ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType, Transport: m.TransportName,
			Properties: properties, OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt,
			HandlerKey: c.HandlerKey, Attempt: c.ErrorCount + c.AbandonedCount + 1,
		},
		Content: m.Content,
	}, nil
}

// call runs the handler's own code. The results are aligned with the members.
func (r *runner) call(ctx context.Context, tx *gorm.DB, members []member, w watcher) []error {
	err := w.mayStart()
	if cause := context.Cause(ctx); err == nil && unstarted(cause) {
		err = cause
	}
	if err != nil {
		return slices.Repeat([]error{err}, len(members))
	}
	deliveries := make([]handler.Delivery, len(members))
	for i, m := range members {
		deliveries[i] = m.delivery
	}
	patience := invoke.Patience{Grace: r.stuckGrace, Overdue: w.overdue, Returned: w.returned}
	return invoke.Call(ctx, tx, members[0].handler, r.middleware, r.running, patience, deliveries...)
}

// traced begins the span of a call; resultsOf ends it, when it is known what the
// attempts have come to.
func (r *runner) traced(ctx context.Context, members []member) context.Context {
	if !r.measure.Traces() {
		return ctx
	}
	messages := make([]handler.Metadata, len(members))
	for i, m := range members {
		messages[i] = m.delivery.Metadata
	}
	ctx, span := r.measure.StartAttempt(ctx, members[0].handler.Key(), messages...)
	for _, m := range members {
		m.span.End() // an earlier call of the same attempt
		m.span = span
	}
	return ctx
}
