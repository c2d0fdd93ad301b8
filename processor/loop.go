package processor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// loop is one session's scheduling: it claims what is due, starts it, and waits for a wake-up, the next due time or the
// poll. It never blocks on the database: claims and attempts run in goroutines of their own. These change its state
// with the pool's lock, and so do accepts that dispatch locally (see Reserve).
type loop struct {
	pool

	act      *activity
	session  *session
	mayStart func(context.Context) error // the session's
	term     context.Context             // the lock's term that it works in, see applyLock

	round              *round    // the running round of claiming; nil if there is none
	notBefore          time.Time // no claim before this, because the last one failed; zero otherwise
	poll               time.Time // when to poll at the latest
	nextDue            time.Time // the earliest known due time; zero if none
	reconcileAt        time.Time // when to wake up to reconcile; zero until a claim has ended
	claimerReconcileAt time.Time // copy of the claimer's reconcileAt, see reconcileDue

	stopping     context.Context // ends at a stop
	reservations []*Reservation  // of running accepts that may bring claims, oldest first
	lost         bool            // the response of an accept was lost during the running claim
}

func newLoop(p *Processor, a *activity, s *session) *loop {
	limits := scheduler.Limits{Concurrency: p.opts.Concurrency, Prefetch: p.opts.Prefetch, BatchSize: p.opts.BatchSize}
	l := &loop{act: a, session: s, mayStart: s.mayStart}
	l.pool = p.newPool(l, limits, a.completer, a.executor)
	return l
}

func (l *loop) within(*group) (context.Context, context.CancelFunc, func(context.Context) error) {
	return l.term, func() {}, l.mayStart
}

func (l *loop) late(*group) bool { return false }

// ended wakes the loop only for what an ended call does not do itself: claim, apply pauses, set
// timers, report stuck handlers, or start several groups. There may be several when a handler has no
// more work, because then the others' fair share is larger.
func (l *loop) ended(g *group, again bool) (next *group) {
	if l.open() {
		next = l.next()
	}
	if next == nil || again || g.overdue || l.slotsOf(g.handler).Idle() ||
		l.round == nil && l.sched.ShouldClaim() {
		l.changed.Notify()
	}
	return next
}

// open reports whether groups may start now. It is false during a stop, after the session has
// ended, and without the lock or in a term of it that the loop has not begun to work in.
func (l *loop) open() bool {
	term := l.session.work()
	return l.broken == nil && l.stopping.Err() == nil && term.Err() == nil && l.term == term
}

func (l *loop) outlived(g *group) {
	l.act.left.remove(g)
	l.giveBack(g.again(), errStopping)
}

// run works until ctx ends (a stop) or the session is fenced. Then it waits until every attempt has ended or is known
// to ignore its cancellation, or giveUp is closed. Handlers that still run are counted as left until they return.
func (l *loop) run(ctx context.Context, giveUp <-chan struct{}) {
	l.stopping = ctx
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p.loop.Store(l)
	defer func() {
		l.closed = true
		l.act.left.add(l.running)
		l.act.unsure = l.lost || len(l.reservations) > 0
		l.p.loop.CompareAndSwap(l, nil)
	}()
	defer l.p.health.stuck(nil)
	defer l.releaseQueued() // also after a panic, because no other code knows of the queued tasks
	pollTimer, lapse := time.NewTimer(0), time.NewTimer(time.Hour)
	defer pollTimer.Stop()
	defer lapse.Stop()
	l.poll = time.Now().Add(l.sched.PollWait())
	l.refresh()
	stopping, fenced := ctx.Done(), l.session.attempts.Done()
	for {
		l.check()
		l.lapse()
		if ctx.Err() != nil || l.session.attempts.Err() != nil {
			l.releaseQueued()
			// A stop waits for accepts that may bring claims, so that these are released before the process ends. It waits
			// within its budget only, and a new session does not wait for them at all.
			if l.round == nil && (len(l.reservations) == 0 || l.session.attempts.Err() != nil) && l.onlyOverdue() {
				return
			}
		} else if l.applyLock() {
			l.applyPauses()
			l.noteOpened(l.applyBreakers())
			l.start()
			l.claim()
		}
		pollTimer.Reset(l.untilNextPoll())
		if next := l.nextLapse(); !next.IsZero() {
			lapse.Reset(max(time.Until(next), time.Millisecond))
		}
		l.mu.Unlock()
		select {
		case <-giveUp:
			l.mu.Lock()
			l.releaseQueued()
			return
		case <-stopping:
			l.mu.Lock()
			stopping = nil
		case <-fenced:
			l.mu.Lock()
			fenced = nil
		case <-l.changed:
			l.mu.Lock()
			l.p.health.stuck(l.stuckHandlers())
		case <-l.p.wakeup.signal:
			l.mu.Lock()
			l.sched.Notify(l.p.wakeup.take())
		case <-lapse.C:
			l.mu.Lock()
		case <-pollTimer.C:
			l.mu.Lock()
			l.pollAll()
		}
	}
}

// pollAll makes the next claims ask for every handler. It runs when a status may be due, when
// reconciling is due or a circuit breaker lets a probe through, and at the latest at the poll.
func (l *loop) pollAll() {
	now := time.Now()
	if !now.Before(l.notBefore) {
		l.notBefore = time.Time{}
	}
	poll := !now.Before(l.poll)
	l.sched.Poll(poll)
	if poll {
		l.poll = now.Add(l.sched.PollWait())
	}
	l.nextDue, l.reconcileAt = time.Time{}, time.Time{}
}

// refresh forgets what is known of the database and makes every handler claim.
func (l *loop) refresh() {
	l.nextDue, l.reconcileAt = time.Time{}, time.Time{}
	l.sched.Refresh()
}

// noteOpened logs that these handlers' circuit breakers have opened.
func (l *loop) noteOpened(opened []*handler.Handler) {
	for _, h := range opened {
		l.p.log.Error("inbox: circuit breaker opened, the handler is not called for a while",
			zap.String(telemetry.FieldHandlerKey, h.Key()), zap.Time(telemetry.FieldUntil, l.p.policies[h].breaker.opensUp()))
	}
}

func (l *loop) onlyOverdue() bool {
	for g := range l.running {
		if !g.overdue {
			return false
		}
	}
	return true
}

func (l *loop) stuckHandlers() map[string]int {
	var stuck map[string]int
	for _, h := range l.sched.Handlers() {
		if n := h.Stuck(); n > 0 {
			if stuck == nil {
				stuck = map[string]int{}
			}
			stuck[h.Key()] = n
		}
	}
	return stuck
}

// untilNextPoll returns the real time until pollAll must run. The wait for a due time is measured by
// the injected clock. It never exceeds PollingInterval, in case that clock jumps.
func (l *loop) untilNextPoll() time.Duration {
	l.noteDue(l.p.wakeup.takeDue())
	wait := time.Until(l.poll)
	if !l.nextDue.IsZero() {
		wait = min(wait, max(l.nextDue.Sub(l.p.clock.Now()), time.Millisecond))
	}
	if !l.reconcileAt.IsZero() && len(l.reservations) == 0 {
		wait = min(wait, max(time.Until(l.reconcileAt), time.Millisecond))
	}
	for h := range l.p.registry.Handlers() {
		if l.slotsOf(h).CircuitOpen() {
			wait = min(wait, max(time.Until(l.p.policies[h].breaker.opensUp()), time.Millisecond))
		}
	}
	if !l.notBefore.IsZero() { // even if it has passed since mayTake looked
		return max(time.Until(l.notBefore), time.Millisecond)
	}
	return wait
}

// wakeup collects reasons to claim. Signals coalesce and never block the sender.
type wakeup struct {
	signal routine.Signal

	mu   sync.Mutex
	keys map[string]bool
	all  bool
	due  time.Time
}

func newWakeup() *wakeup { return &wakeup{signal: routine.NewSignal(), keys: map[string]bool{}} }

// wake says that these handlers may have new due statuses; without keys, that any handler may.
func (w *wakeup) wake(keys ...string) {
	w.mu.Lock()
	w.all = w.all || len(keys) == 0
	for _, key := range keys {
		w.keys[key] = true
	}
	w.mu.Unlock()
	w.notify()
}

// at says that a status comes due at that time.
func (w *wakeup) at(due time.Time) {
	w.mu.Lock()
	if w.due.IsZero() || due.Before(w.due) {
		w.due = due
	}
	w.mu.Unlock()
	w.signal.Notify()
}

// notify makes the loop run another round, without news about due statuses.
func (w *wakeup) notify() { w.signal.Notify() }

func (w *wakeup) take() (keys map[string]bool, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys, all = w.keys, w.all
	w.keys, w.all = map[string]bool{}, false
	return keys, all
}

func (w *wakeup) takeDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.due
	w.due = time.Time{}
	return due
}

// policy is how one handler's attempts run and are retried: by the handler's own options, or else by the inbox's.
type policy struct {
	attempt.Policy
	breaker *breaker // nil if it has none
	// groupSize is how many messages may share a call or a transaction.
	groupSize int
	// maxRetryDelay is the inbox's, which limits what an interrupted status waits.
	maxRetryDelay time.Duration
	// lanes is the rule for the handler's lanes; nil if it is not ordered.
	lanes *store.LaneRule
	// redactor redacts error texts. It is the inbox's.
	redactor redaction.Redactor
}

func newPolicy(
	h *handler.Handler, opts Options, inboxDelay func(errorCount int) time.Duration, wake func(handlerKeys ...string),
) *policy {
	p := &policy{
		Policy:    attempt.NewPolicy(h, opts.HandlerTimeout, opts.MaxRetries, opts.MaxRetryDelay, inboxDelay),
		groupSize: max(h.BatchSize(), h.TxGroup()), maxRetryDelay: opts.MaxRetryDelay,
	}
	if settings, own := h.CircuitBreaker(); own {
		p.breaker = newBreaker(settings, func() { wake(h.Key()) })
	}
	if h.Ordered() {
		p.lanes = &store.LaneRule{SkipPoisoned: h.SkipsPoisoned()}
		for _, key := range h.Keys() {
			p.lanes.Handlers = append(p.lanes.Handlers, store.LaneHandler(key))
		}
	}
	return p
}

// rules returns what the scheduler knows of the handler. The due messages of ordered handlers
// cannot be counted, because rows of a lane may wait for each other. Nor can those of handlers with
// legacy keys, because each key is claimed with a quota of its own.
func (p *policy) rules(h *handler.Handler) scheduler.Rules {
	r := scheduler.Rules{Key: h.Key(), Concurrency: h.Concurrency(), GroupSize: p.groupSize, Counted: p.lanes == nil &&
		len(h.LegacyKeys()) == 0}
	if p.breaker != nil {
		r.Circuit = p.breaker.state
	}
	return r
}
