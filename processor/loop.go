package processor

import (
	"context"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"

	"go.uber.org/zap"
)

// loop is one session's scheduling: it claims what is due, starts it, and waits for a wake-up, the
// next due time or the poll. It never blocks on the database: claims and attempts run in goroutines
// of their own and report by events. Attempts pass their results to the completer themselves, so
// nothing is lost when they outlive the loop.
//
// Accepts that dispatch locally (see Reserve) read and change its state from their own goroutines.
// So the loop holds mu all the time except while it waits.
type loop struct {
	mu sync.Mutex
	pool

	act     *activity
	session *session
	term    context.Context // the lock's term that it works in, see applyLock

	claiming           bool
	notBefore          time.Time // no claim before this, because the last one failed
	poll               time.Time // when to poll at the latest
	nextDue            time.Time // the earliest known due time; zero if none
	reconcileAt        time.Time // when to wake up to reconcile; zero until a claim has ended
	claimerReconcileAt time.Time // copy of the claimer's reconcileAt, see reconcileDue

	stopping     context.Context // ends at a stop
	reservations []*Reservation  // of running accepts that may bring claims, oldest first
	lost         bool            // the response of an accept was lost during the running claim
	reconciling  bool            // the running claim reconciles
	closed       bool            // it accepts no more work
}

func newLoop(p *Processor, a *activity, s *session) *loop {
	limits := scheduler.Limits{Concurrency: p.opts.Concurrency, Prefetch: p.opts.prefetch(), BatchSize: p.opts.BatchSize}
	l := &loop{pool: p.newPool(limits, a.completer, a.executor), act: a, session: s}
	l.within = func(*group) (context.Context, context.CancelFunc, func(context.Context) error) {
		return s.work(), func() {}, s.mayStart
	}
	l.missed = l.runNoMore
	return l
}

// run works until ctx ends (a stop) or the session is fenced. Then it waits until every attempt has
// ended or is known to ignore its cancellation, or giveUp is closed. Handlers that still run are
// counted as left until they return.
func (l *loop) run(ctx context.Context, giveUp <-chan struct{}) {
	l.stopping = ctx
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p.loop.Store(l)
	defer func() { l.closed = true; l.p.loop.CompareAndSwap(l, nil) }()
	defer func() {
		l.act.left.add(l.running)
		l.close()
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
		l.lapse()
		if ctx.Err() != nil || l.session.attempts.Err() != nil {
			l.releaseQueued()
			// A stop waits for accepts that may bring claims, so that these are released before the
			// process ends. It waits within its budget only, and a new session does not wait for
			// them at all.
			if !l.claiming && (len(l.reservations) == 0 || l.session.attempts.Err() != nil) && l.onlyOverdue() {
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
		case <-l.reports.arrived:
			l.mu.Lock()
			for _, e := range l.reports.take() {
				if e.claimed != nil {
					l.noteClaimed(e.claimed)
				} else {
					l.handle(e)
				}
			}
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

// runNoMore handles an event that comes after the loop has ended: it releases what the event
// brings.
func (l *loop) runNoMore(e event) {
	switch {
	case e.finished != nil:
		l.act.left.remove(e.finished)
		l.giveBack(e.finished.again(), errStopping)
	case e.claimed != nil:
		l.giveBack(e.claimed.attempts, errStopping)
	}
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
	for _, h := range l.p.registry.Handlers() {
		if l.slotsOf(h).CircuitOpen() {
			wait = min(wait, max(time.Until(l.p.policies[h].breaker.opensUp()), time.Millisecond))
		}
	}
	if pause := time.Until(l.notBefore); pause > 0 {
		return pause
	}
	return wait
}
