package processor

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Reservation is a promise of slots to one accept, which inserts its statuses as claimed by this worker. The statuses
// take their slots from now on. The accept must end it with exactly one of Deliver and Abandon, even if it fails. A
// statement that claims the next rows of lanes has one as well, see lanes.runNext. It is not safe for concurrent use.
type Reservation struct {
	loop  *loop
	grant *scheduler.Grant[*task] // nil if the worker must not claim
	until time.Time               // when the slots become free for claims again
}

// reservationLife is how long a reservation keeps slots from claims. An accept takes a few milliseconds. One that waits
// for a lock held by another transaction must not keep slots idle that could run due messages.
const reservationLife = 100 * time.Millisecond

// Reserve reserves slots for new statuses, whose number is given by handler key, and memory for the bytes of their
// messages, counted once for each status (contract 5.17). It returns nil unless the processor is started and has a
// session. It never waits for handlers or for the database, and is safe for concurrent use.
//
// It grants slots that nothing else is going to take; a handler below its fair share gets more than those. It grants
// none to handlers that are paused, that are ordered (a claim has to judge the lane), that have legacy keys (a claim
// has to look for siblings), whose circuit breaker is not closed or that have too many calls that do not return. It
// grants none to handlers that may have older due statuses in the database either, unless their number is known; then
// slots are kept free for these. It grants nothing at all while the worker must not claim.
func (p *Processor) Reserve(wanted map[string]int, bytes int) *Reservation {
	if l := p.loop.Load(); l != nil {
		return l.reserve(wanted, bytes)
	}
	return nil
}

func (l *loop) reserve(wanted map[string]int, bytes int) *Reservation {
	return l.reserveBy(wanted, func(byHandler map[string]int) *scheduler.Grant[*task] {
		return l.sched.Reserve(byHandler, bytes)
	})
}

// reserveNext reserves slots for the next messages of lanes that have moved on, whose number is given by handler key,
// for a statement that claims them. It grants nothing while accepts get nothing, and none to handlers that are paused.
func (p *Processor) reserveNext(wanted map[string]int) *Reservation {
	if l := p.loop.Load(); l != nil {
		return l.reserveBy(wanted, l.sched.ReserveNext)
	}
	return nil
}

func (l *loop) reserveBy(wanted map[string]int, grant func(map[string]int) *scheduler.Grant[*task]) *Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.stopping.Err() != nil || l.session.attempts.Err() != nil {
		return nil
	}
	r := &Reservation{loop: l}
	if !l.mayDispatch() {
		return r
	}
	byHandler := make(map[string]int, len(wanted))
	for key, n := range wanted {
		if h, known := l.p.registry.Lookup(key); known && !l.p.Paused(h) {
			byHandler[h.Key()] = n
		}
	}
	r.grant = grant(byHandler)
	if !r.grant.Empty() {
		r.until = time.Now().Add(reservationLife)
		l.reservations = append(l.reservations, r)
		l.changed.Notify() // the loop sets the timer for it
	}
	return r
}

// mayDispatch reports whether accepts may dispatch statuses locally. In Exclusive mode they may only
// in a term of the lock that the loop works in. They may not while claims are reconciled or are
// about to be, because reconciling requires that no claims are on their way.
func (l *loop) mayDispatch() bool {
	term := l.session.work()
	reconciles := l.round != nil && l.round.reconcile
	return term.Err() == nil && l.term == term && l.mayTake() && !reconciles && !l.reconcileDue()
}

// Worker returns the ID of the worker that must claim the statuses.
func (r *Reservation) Worker() string { return r.loop.session.id }

// Granted returns how many statuses of a handler may be inserted as claimed.
func (r *Reservation) Granted(handlerKey string) int {
	h, known := r.loop.p.registry.Lookup(handlerKey)
	if !known {
		return 0
	}
	return r.grant.Messages(h.Key())
}

// Bytes returns how many bytes the messages of these statuses may have together; the last of them may exceed it.
func (r *Reservation) Bytes() int { return r.grant.Bytes() }

// Deliver queues claims that are committed, to be run. unclaimed is the number of statuses, by handler key, that were
// stored for any worker to claim. If the worker has ended since Reserve, Deliver releases the claims before it returns;
// if that fails they are recovered like the claims of any dead worker.
func (r *Reservation) Deliver(claims []store.Claim, unclaimed map[string]int) {
	l := r.loop
	l.p.notify(slices.Collect(maps.Keys(unclaimed))...)
	if !r.run(claims, unclaimed) {
		for key := range unclaimed {
			l.p.wakeup.wake(key)
		}
		return
	}
	for _, c := range claims {
		l.p.counters.OfHandler(telemetry.Dispatched, c.HandlerKey, 1)
	}
}

// run queues claims, and ends the reservation. It returns false if the worker has ended, and the claims are released.
func (r *Reservation) run(claims []store.Claim, unclaimed map[string]int) bool {
	l := r.loop
	tasks := make([]*task, 0, len(claims))
	for _, c := range claims {
		h, _ := l.p.registry.Lookup(c.HandlerKey) // known, because only registered keys are granted
		tasks = append(tasks, newTask(c, h, l.p.policies[h]))
	}
	if !l.take(r, claims, tasks, unclaimed) {
		l.giveBackLate(tasks)
		return false
	}
	l.p.wakeup.notify()
	return true
}

func (l *loop) take(r *Reservation, claims []store.Claim, tasks []*task, unclaimed map[string]int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.free()
	if l.closed {
		return false
	}
	l.act.claimer.held.add(claims)
	for _, t := range tasks {
		if l.act.claimer.isForeign(t) { // for a claim that asks who must run it
			l.giveBack([]*task{t}, errForeign)
			continue
		}
		l.enqueue([]*task{t}, false)
	}
	for key, n := range unclaimed {
		if h, known := l.p.registry.Lookup(key); known {
			l.sched.Accepted(h.Key(), n)
		}
	}
	return true
}

// Abandon ends the reservation of an accept that committed nothing. lost says that the accept's response was lost, so
// it is not known whether it committed; the worker's claims are then reconciled (contract 5.9).
func (r *Reservation) Abandon(lost bool) {
	l := r.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = lost && !r.grant.Empty()
	r.free()
	if l.closed {
		return
	}
	if lost {
		l.lost = true
		if l.round == nil {
			l.noteLost()
		}
	}
	l.p.wakeup.notify() // the freed slots can be claimed for
}

// free returns the slots.
func (r *Reservation) free() {
	if r.grant.Empty() {
		return
	}
	r.grant.End()
	l := r.loop
	l.reservations = slices.DeleteFunc(l.reservations, func(other *Reservation) bool { return other == r })
}

// lapse lets claims use the slots of reservations that have expired, and releases tasks that have
// waited for a slot for so long that other workers should run them.
func (l *loop) lapse() {
	now := time.Now()
	for _, r := range l.reservations {
		if !now.Before(r.until) {
			r.grant.Expire()
		}
	}
	if l.p.opts.Mode == ModeCompeting {
		for _, h := range l.sched.Handlers() {
			l.giveBack(h.DropLate(now), errWaited)
		}
	}
}

// nextLapse returns when lapse has to run next, or a handler's rate lets a call start; zero if neither will.
func (l *loop) nextLapse() (next time.Time) {
	next = l.nextStart()
	for _, r := range l.reservations {
		if !r.grant.Expired() {
			next = earlier(next, r.until)
			break
		}
	}
	if l.p.opts.Mode == ModeCompeting {
		for _, h := range l.sched.Handlers() {
			next = earlier(next, h.LateAt())
		}
	}
	return next
}

// noteLost schedules reconciling if an accept's response was lost. Call it only while no claim is
// running, because the claim's goroutine owns the claimer.
func (l *loop) noteLost() {
	if l.lost {
		l.lost = false
		l.act.claimer.noteLostResponse()
	}
	l.reconcileAt = l.act.claimer.nextReconcile()
}

// giveBackLate releases claims that came after their loop had ended. It writes them directly, because
// the completer may have ended, too.
func (l *loop) giveBackLate(tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	stmt, cancel := context.WithTimeout(context.Background(), l.p.opts.StatementTimeout)
	defer cancel()
	results, settlements := make([]result, len(tasks)), make([]store.Settlement, len(tasks))
	for i, t := range tasks {
		results[i] = releasedResult(t, errStopping, l.p.clock.Now())
		settlements[i] = *results[i].settlement
	}
	applied, err := l.p.store.Settle(stmt, settlements, store.AwaitLocked)
	if err != nil {
		l.p.log.Warn("inbox: releasing claims of a worker that has ended failed, they are recovered",
			zap.Int(telemetry.FieldClaims, len(tasks)), zap.Error(err))
		return
	}
	for i, r := range results {
		l.act.claimer.held.drop(r.claim)
		if applied[i] { // otherwise it was released before, as by the end of a stop
			l.p.recordResult(stmt, r, true)
		}
	}
}
