package processor

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// loop is one session's scheduling: it claims due statuses, starts them, and waits for a wake-up, the next due time or
// the poll. It never blocks on the database: claims and attempts run in other goroutines. These change its state with
// the pool's lock, and so do accepts that dispatch locally (see Reserve).
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
	l.pool = p.newPool(l, limits, a.completer, s.limits)
	return l
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
		l.executor.Close()
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
			l.applyLimits()
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

// claim starts rounds of claiming, unless one is running. They end when there is none to begin.
func (l *loop) claim() {
	if l.round != nil {
		return
	}
	if r := l.beginRound(); r != nil {
		l.act.rounds.Go(func() { l.claimRounds(r) })
	}
}

// round is a round of claiming: its quotas and its result.
type round struct {
	quotas    map[string]scheduler.Quota
	reconcile bool // whether it reconciles first

	tasks []*task
	short map[*handler.Handler]bool // whether the handler had fewer due statuses than its quota
	asked []*handler.Handler        // handlers whose next due time was asked
	next  time.Time                 // the earliest next due time of asked; zero if there is none
	err   error
}

// beginRound begins a round of claiming, unless mayTake forbids it, nothing may be due or no slot is
// free. In the last two cases it still begins a round if claims must be reconciled, even if all
// slots are busy, perhaps for hours: other workers can run lost claims.
func (l *loop) beginRound() *round {
	if !l.mayTake() {
		return nil
	}
	quotas := l.sched.Claim()
	if quotas == nil && !l.mayReconcile() {
		return nil
	}
	return l.newRound(quotas)
}

// newRound begins a round. If reconciling is due, the round reconciles first, but only while no
// accept may bring claims, because a claim that is committed and not yet received would seem lost.
// That is also why no accept may reserve slots until the round has ended.
func (l *loop) newRound(quotas map[string]scheduler.Quota) *round {
	l.round = &round{quotas: quotas, reconcile: l.mayReconcile()}
	return l.round
}

// claimRounds claims, in a round that has begun and in further ones for as long as there is more to
// claim. Each begins as soon as the last one has ended, so that the database does not wait until
// the loop gets its turn among running handlers.
func (l *loop) claimRounds(r *round) {
	var late []*task // claimed after the loop has ended
	for r != nil {
		l.claimRound(r)
		ended := r
		r = nil
		l.update(func() {
			l.noteClaimed(ended)
			if l.open() {
				l.start()
				r = l.beginRound()
			}
			l.changed.Notify()
		}, func() { late = ended.tasks })
	}
	l.giveBackLate(late)
}

// claimRound claims, and asks for the next due time of each handler that ran short and whose next due time is not known
// yet. It asks for each such handler, not only when all ran short: otherwise one handler's backlog would hide the due
// times of others. Both statements use the same time, so a status that comes due between them cannot be missed by both.
func (l *loop) claimRound(r *round) {
	if err := routine.Protect("claiming", func() error { l.reconcileAndClaim(r); return nil }); err != nil {
		r.err = err
	}
	switch {
	case r.err == nil:
		l.p.claiming.End(nil)
	case l.session.attempts.Err() == nil:
		l.p.claiming.Begin(nil, r.err, zap.Duration(telemetry.FieldTryingAgainAfter, l.p.opts.HeartbeatInterval))
	}
}

func (l *loop) reconcileAndClaim(r *round) {
	attempts := l.session.attempts
	if r.reconcile {
		released, err := l.act.claimer.reconcile(attempts, l.session.id)
		if err != nil && attempts.Err() == nil {
			l.p.log.Warn("inbox: reconciling lost claims failed, trying again", zap.Error(err))
		}
		if released > 0 {
			l.p.log.Warn("inbox: released claims of this worker that nothing runs", zap.Int(telemetry.FieldClaims, released))
			l.p.Wake()
		}
	}
	if len(r.quotas) == 0 {
		return
	}
	now := l.p.clock.Now()
	if r.err = context.Cause(attempts); r.err != nil {
		return
	}
	r.tasks, r.short, r.err = l.act.claimer.claim(l.session.claims, l.session.id, r.quotas, now)
	if r.err != nil {
		return
	}
	for h, short := range r.short {
		if short && r.quotas[h.Key()].AskNextDue {
			r.asked = append(r.asked, h)
		}
	}
	if r.next, r.err = l.act.claimer.nextDue(attempts, r.asked, now); r.err != nil {
		r.asked = nil
	}
}

// noteClaimed queues the claimed tasks and records whether more may be due in the database.
func (l *loop) noteClaimed(r *round) {
	l.round = nil
	l.noteLost()
	if l.sched.EndClaim(r.found()) {
		l.poll = time.Now().Add(l.sched.PollWait())
	}
	if r.err != nil {
		l.notBefore = time.Now().Add(l.p.opts.HeartbeatInterval)
	}
	for i := range r.tasks {
		l.enqueue(r.tasks[i:i+1:i+1], false)
	}
	l.nextDue = earlier(l.nextDue, r.next)
}

// found returns the round's result as the scheduler needs it.
func (r *round) found() scheduler.Claimed {
	found := scheduler.Claimed{Failed: r.err != nil}
	for _, t := range r.tasks {
		if key := t.Handler.Key(); t.claim.Due.Equal(t.claim.CreatedAt) && !slices.Contains(found.New, key) {
			found.New = append(found.New, key)
		}
	}
	for h, short := range r.short {
		if !short {
			found.Full = append(found.Full, h.Key())
		}
	}
	for _, h := range r.asked {
		found.NextDueKnown = append(found.NextDueKnown, h.Key())
	}
	return found
}

// mayTake reports whether the loop may take claims. It may not for a while after a failed claim, while the session must
// not claim, and while too many results wait to be stored because the database is slow.
func (l *loop) mayTake() bool {
	return !time.Now().Before(l.notBefore) && l.session.mayClaim() &&
		l.act.completer.backlog() <= 2*l.p.opts.BatchSize+l.p.opts.Concurrency
}

// mayReconcile reports whether reconciling is due and no response of an accept is on its way. A routine reconciliation
// waits for such a moment and does not stop accepts from reserving slots. Call it only while no claim is running.
func (l *loop) mayReconcile() bool {
	due := l.reconcileDue() // asked in any case, because it notes the date for accepts that come during the round
	return len(l.reservations) == 0 && (due || !time.Now().Before(l.act.claimer.routine))
}

// reconcileDue reports whether reconciling is due because a response was lost. While a round runs, its
// goroutine owns the claimer, so reconcileDue uses the date that was read before.
func (l *loop) reconcileDue() bool {
	if l.round == nil {
		l.claimerReconcileAt = l.act.claimer.reconcileAt
	}
	return !l.claimerReconcileAt.IsZero() && !time.Now().Before(l.claimerReconcileAt)
}

// untilNextPoll returns the real time until pollAll must run. The wait for a due time is measured by
// the injected clock. It never exceeds PollingInterval, in case that clock jumps.
func (l *loop) untilNextPoll() time.Duration {
	l.nextDue = earlier(l.nextDue, l.p.wakeup.takeDue())
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

// refresh forgets the known state of the database and makes every handler claim.
func (l *loop) refresh() {
	l.nextDue, l.reconcileAt = time.Time{}, time.Time{}
	l.sched.Refresh()
}

// open reports whether groups may start now. It is false during a stop, after the session has
// ended, and without the lock or in a term of it that the loop has not begun to work in.
func (l *loop) open() bool {
	term := l.session.work()
	return l.broken == nil && l.stopping.Err() == nil && term.Err() == nil && l.term == term
}

func (l *loop) within(*group) (context.Context, context.CancelFunc, func(context.Context) error) {
	return l.term, func() {}, l.mayStart
}

func (l *loop) late(*group) bool { return false }

// ended wakes the loop only for actions that an ended call does not do itself: claim, apply pauses, set timers, report
// stuck handlers, or start several groups. There may be several when a handler has no more work, because then the
// others' fair share is larger.
func (l *loop) ended(g *group, again bool) (next *group) {
	if l.open() {
		next = l.next()
	}
	if next == nil || again || g.overdue || l.slotsOf(next.handler).AwaitsRate() || l.slotsOf(g.handler).Idle() ||
		l.round == nil && l.sched.ShouldClaim() {
		l.changed.Notify()
	}
	return next
}

func (l *loop) outlived(g *group) {
	l.act.left.remove(g)
	l.giveBack(g.again(), errStopping)
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

// earlier returns the earlier of two times. A zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
