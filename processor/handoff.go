package processor

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Reservation is the promise to run statuses that one accept inserts, claimed
// for this worker: they take their slots from now on. Exactly one of Deliver
// and Abandon must end it, whatever becomes of the accept. It is for one
// goroutine.
type Reservation struct {
	loop  *loop
	grant *scheduler.Grant[*task] // nil if the worker must not claim
	until time.Time               // when it lapses
}

// reservationLife is how long a reservation keeps its slots free. An accept
// takes a few milliseconds; one that waits for a lock, which somebody's open
// transaction holds, must not keep slots idle that could run what is due.
const reservationLife = 100 * time.Millisecond

// Reserve asks for room for so many new statuses, by handler key (contract
// 5.17). It returns nil unless the processor is started and has a session.
// It is quick whatever the handlers and the database are doing, and safe for
// concurrent use.
//
// Room is in slots that nothing else is going to take, and for a handler below
// its fair share beyond those. There is none for handlers that are paused, that
// are ordered (a claim has to judge the lane), that have legacy keys (a claim
// has to look for siblings), whose circuit breaker is not closed or whose calls
// do not return; none for those that may have older statuses due in the
// database, unless these are known to be few, and have slots set aside; and
// none at all while the worker must not claim.
func (p *Processor) Reserve(wanted map[string]int) *Reservation {
	if l := p.loop.Load(); l != nil {
		return l.reserve(wanted)
	}
	return nil
}

func (l *loop) reserve(wanted map[string]int) *Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.stopping.Err() != nil || l.session.attempts.Err() != nil {
		return nil
	}
	r := &Reservation{loop: l}
	if !l.mayHandOff() {
		return r
	}
	byHandler := make(map[string]int, len(wanted))
	for key, n := range wanted {
		if h, known := l.p.registry.Lookup(key); known && !l.p.Paused(h) {
			byHandler[h.Key()] = n
		}
	}
	r.grant = l.sched.Reserve(byHandler)
	if !r.grant.Empty() {
		r.until = time.Now().Add(reservationLife)
		l.promised = append(l.promised, r)
	}
	return r
}

// mayHandOff: in Exclusive mode only in a term that the loop works in. While
// lost claims are looked for, or are about to be, none may be on their way.
func (l *loop) mayHandOff() bool {
	term := l.session.work()
	return term.Err() == nil && l.term == term && l.mayTake() && !l.reconciling && !l.lookDue()
}

// Worker is for whom the statuses must be claimed.
func (r *Reservation) Worker() string { return r.loop.session.id }

// Granted is how many statuses of a handler may be claimed.
func (r *Reservation) Granted(handlerKey string) int {
	h, known := r.loop.p.registry.Lookup(handlerKey)
	if !known {
		return 0
	}
	return r.grant.Messages(h.Key())
}

// Deliver runs claims that are committed, and learns how many statuses, by
// handler key, were accepted for anybody to claim. If the worker has ended
// since Reserve, the claims are given back before it returns; if that fails
// they are recovered like those of any worker that is gone.
func (r *Reservation) Deliver(claims []store.Claim, unclaimed map[string]int) {
	l := r.loop
	attempts := make([]*task, 0, len(claims))
	for _, c := range claims {
		h, _ := l.p.registry.Lookup(c.HandlerKey) // else it was not granted
		attempts = append(attempts, newTask(c, h, l.p.policies[h]))
	}
	if !l.take(r, claims, attempts, unclaimed) {
		l.giveBackLate(attempts)
		for key := range unclaimed {
			l.p.Wake(key)
		}
		return
	}
	for _, c := range claims {
		l.p.counters.OfHandler(telemetry.HandedOff, c.HandlerKey, 1)
	}
	l.p.wakeup.notify()
}

func (l *loop) take(r *Reservation, claims []store.Claim, attempts []*task, unclaimed map[string]int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.free()
	if l.over {
		return false
	}
	l.act.claimer.held.add(claims)
	for _, a := range attempts {
		l.enqueue([]*task{a}, false)
	}
	for key, n := range unclaimed {
		if h, known := l.p.registry.Lookup(key); known {
			l.sched.Accepted(h.Key(), n)
		}
	}
	return true
}

// Abandon ends the reservation of an accept that committed nothing; or of
// which, if the answer was lost, nobody knows: claims that this worker does not
// know of are then looked for (contract 5.9).
func (r *Reservation) Abandon(lost bool) {
	l := r.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = lost && !r.grant.Empty()
	r.free()
	if l.over {
		return
	}
	if lost {
		l.lost = true
		if !l.claiming {
			l.noteLost()
		}
	}
	l.p.wakeup.notify() // there are slots to claim for
}

// free gives the slots back.
func (r *Reservation) free() {
	if r.grant.Empty() {
		return
	}
	r.grant.End()
	l := r.loop
	l.promised = slices.DeleteFunc(l.promised, func(other *Reservation) bool { return other == r })
}

// lapse frees, for claims, the slots of reservations that have grown old.
func (l *loop) lapse() {
	now := time.Now()
	for _, r := range l.promised {
		if !now.Before(r.until) {
			r.grant.Expire()
		}
	}
}

// nextLapse is when the next reservation lapses; zero if there is none.
func (l *loop) nextLapse() time.Time {
	for _, r := range l.promised {
		if !r.grant.Expired() {
			return r.until
		}
	}
	return time.Time{}
}

// noteLost begins to doubt if an accept's answer was lost. No claim is under
// way, whose goroutine the claimer belongs to then.
func (l *loop) noteLost() {
	if l.lost {
		l.lost = false
		l.act.claimer.doubtFromNow()
	}
	l.doubt = l.act.claimer.nextLook()
}

// giveBackLate gives claims back that were delivered when their loop was over.
// The completer may be, too.
func (l *loop) giveBackLate(attempts []*task) {
	if len(attempts) == 0 {
		return
	}
	stmt, cancel := context.WithTimeout(context.Background(), l.p.opts.StatementTimeout)
	defer cancel()
	results, settlements := make([]result, len(attempts)), make([]store.Settlement, len(attempts))
	for i, a := range attempts {
		results[i] = notRun(a, errStopping, l.p.clock.Now())
		settlements[i] = results[i].settlement
	}
	applied, err := l.p.store.Settle(stmt, settlements, store.AwaitLocked)
	if err != nil {
		l.p.log.Warn("inbox: claims accepted for a worker that has ended could not be given back, they are recovered",
			zap.Int(telemetry.FieldClaims, len(attempts)), zap.Error(err))
		return
	}
	for i, r := range results {
		l.p.settled(stmt, r, applied[i])
	}
}
