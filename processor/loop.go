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

// loop is one session's scheduling (contract 5.1): claim what is due, start
// it, and wait for a wake-up, the next due time or the poll. Claims and
// attempts run in goroutines of their own and report by events; accepts that
// hand off (see Reserve) look at its state and change it between two of its
// rounds: it holds mu unless it waits. It never blocks on the database.
// Attempts hand their results to the completer themselves, so nothing is lost
// when they outlive the loop.
type loop struct {
	mu sync.Mutex
	pool

	act     *activity
	session *session
	term    context.Context // under which it works, see obeyLock

	claiming  bool
	notBefore time.Time // no claim before this: the last one failed
	poll      time.Time // the next look whatever is known
	nextDue   time.Time // zero if none is known
	doubt     time.Time // when to wake for the look for own claims that nothing runs; zero until a claim has ended
	lookAt    time.Time // the claimer's doubt when that was last at rest, see lookDue

	stopping    context.Context // ends with a stop
	promised    []*Reservation  // of accepts under way that may bring claims, oldest first
	lost        bool            // the answer of one was lost during the claim under way
	reconciling bool            // the claim under way looks for lost claims
	over        bool            // it takes nothing any more
}

func newLoop(p *Processor, a *activity, s *session) *loop {
	limits := scheduler.Limits{Concurrency: p.opts.Concurrency, Prefetch: p.opts.prefetch(), BatchSize: p.opts.BatchSize}
	l := &loop{pool: p.newPool(limits, a.completer, a.crew), act: a, session: s}
	l.within = func(*group) (context.Context, context.CancelFunc, func(context.Context) error) {
		return s.work(), func() {}, s.mayStart
	}
	l.missed = l.runNoMore
	return l
}

// run works until ctx ends (a stop) or the session is fenced, and then until
// every attempt has ended or is known to ignore its cancellation, or giveUp
// is closed. Handlers that still run then count as left until they return.
func (l *loop) run(ctx context.Context, giveUp <-chan struct{}) {
	l.stopping = ctx
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p.loop.Store(l)
	defer func() { l.over = true; l.p.loop.CompareAndSwap(l, nil) }()
	defer func() {
		l.act.left.add(l.running)
		l.close()
	}()
	defer l.p.health.stuck(nil)
	defer l.releaseQueued() // also if this panics: nobody else knows of them
	look, lapse := time.NewTimer(0), time.NewTimer(time.Hour)
	defer look.Stop()
	defer lapse.Stop()
	l.poll = time.Now().Add(l.sched.PollWait())
	l.lookAnew()
	stopping, fenced := ctx.Done(), l.session.attempts.Done()
	for {
		l.lapse()
		if ctx.Err() != nil || l.session.attempts.Err() != nil {
			l.releaseQueued()
			// A stop waits for accepts that may bring claims, so that these are
			// given back before the process ends; not for ever, though, and a
			// new session must not wait for them at all.
			if !l.claiming && (len(l.promised) == 0 || l.session.attempts.Err() != nil) && l.onlyOverdue() {
				return
			}
		} else if l.obeyLock() {
			l.applyPauses()
			l.noteOpened(l.applyBreakers())
			l.start()
			l.claim()
		}
		look.Reset(l.untilNextLook())
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
		case <-look.C:
			l.mu.Lock()
			l.look()
		}
	}
}

// look looks for work: something comes due, or it is time for the poll.
func (l *loop) look() {
	now := time.Now()
	poll := !now.Before(l.poll)
	l.sched.Poll(poll)
	if poll {
		l.poll = now.Add(l.sched.PollWait())
	}
	l.nextDue, l.doubt = time.Time{}, time.Time{}
}

// lookAnew forgets what is known of the database and makes every handler ask.
func (l *loop) lookAnew() {
	l.nextDue, l.doubt = time.Time{}, time.Time{}
	l.sched.Refresh()
}

// runNoMore: nobody is left to run what an event brings.
func (l *loop) runNoMore(e event) {
	switch {
	case e.finished != nil:
		l.act.left.remove(e.finished)
		l.giveBack(e.finished.again(), errStopping)
	case e.claimed != nil:
		l.giveBack(e.claimed.attempts, errStopping)
	}
}

// noteOpened logs whose circuit breaker has opened.
func (l *loop) noteOpened(opened []*handler.Handler) {
	for _, h := range opened {
		l.p.log.Error("inbox: circuit breaker opened, the handler is left alone for a while",
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

// untilNextLook is the real time until the next due status or the poll. The
// wait for a due time is measured by the injected clock and never longer than
// PollingInterval, should that clock jump.
func (l *loop) untilNextLook() time.Duration {
	l.noteDue(l.p.wakeup.takeDue())
	wait := time.Until(l.poll)
	if !l.nextDue.IsZero() {
		wait = min(wait, max(l.nextDue.Sub(l.p.clock.Now()), time.Millisecond))
	}
	if !l.doubt.IsZero() && len(l.promised) == 0 {
		wait = min(wait, max(time.Until(l.doubt), time.Millisecond))
	}
	for _, h := range l.p.registry.Handlers() {
		if l.shareOf(h).CircuitOpen() {
			wait = min(wait, max(time.Until(l.p.policies[h].breaker.opensUp()), time.Millisecond))
		}
	}
	if pause := time.Until(l.notBefore); pause > 0 {
		return pause
	}
	return wait
}
