package processor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// Reservation is the promise to run statuses that one accept inserts, claimed
// for this worker: they take their slots from now on. Exactly one of Deliver
// and Abandon must end it, whatever becomes of the accept. It is for one
// goroutine.
type Reservation struct {
	loop    *loop
	granted map[*share]int
	until   time.Time // when it lapses
	lapsed  bool
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
	shares := make(map[*share]int, len(wanted))
	for key, n := range wanted {
		if s := l.shareOf(key); s != nil && n > 0 && s.takesHandoff() && !l.p.Paused(s.handler) && l.board.canRun(s) {
			shares[s] = n
		}
	}
	r.granted = l.board.offer(shares)
	for s, n := range r.granted {
		s.reserved += n
	}
	if len(r.granted) > 0 {
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

func (l *loop) shareOf(handlerKey string) *share {
	h, _ := l.p.registry.Lookup(handlerKey)
	return l.board.byHandler[h]
}

// Worker is for whom the statuses must be claimed.
func (r *Reservation) Worker() string { return r.loop.session.id }

// Granted is how many statuses of a handler may be claimed.
func (r *Reservation) Granted(handlerKey string) int { return r.granted[r.loop.shareOf(handlerKey)] }

// Deliver runs claims that are committed, and learns how many statuses, by
// handler key, were accepted for anybody to claim. If the worker has ended
// since Reserve, the claims are given back before it returns; if that fails
// they are recovered like those of any worker that is gone.
func (r *Reservation) Deliver(claims []store.Claim, unclaimed map[string]int) {
	l := r.loop
	attempts := make([]*task, 0, len(claims))
	for _, c := range claims {
		s := l.shareOf(c.HandlerKey)
		attempts = append(attempts, newTask(c, s.handler, s.policy))
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
		l.enqueue(l.board.byHandler[a.Handler], []*task{a}, false)
	}
	for key, n := range unclaimed {
		s := l.shareOf(key)
		l.polling.told(s.handler.Key())
		s.accepted(n)
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
	lost = lost && len(r.granted) > 0
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
	if len(r.granted) == 0 {
		return
	}
	for s, n := range r.granted {
		if r.lapsed {
			s.lapsed -= n
		} else {
			s.reserved -= n
		}
	}
	r.granted = nil
	l := r.loop
	l.promised = slices.DeleteFunc(l.promised, func(other *Reservation) bool { return other == r })
}

// lapse frees, for claims, the slots of reservations that have grown old. What
// these bring nevertheless waits in the queue, beyond what claims put there: at
// most as much again, because for other accepts the slots stay taken.
func (l *loop) lapse() {
	now := time.Now()
	for _, r := range l.promised {
		if r.lapsed || now.Before(r.until) {
			continue
		}
		r.lapsed = true
		for s, n := range r.granted {
			s.reserved -= n
			s.lapsed += n
		}
	}
}

// nextLapse is when the next reservation lapses; zero if there is none.
func (l *loop) nextLapse() time.Time {
	for _, r := range l.promised {
		if !r.lapsed {
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
		results[i] = interrupted(a, l.p.clock.Now())
		settlements[i] = results[i].settlement
	}
	applied, err := l.p.store.Settle(stmt, settlements, store.AwaitLocked)
	if err != nil {
		l.p.log.Warn("inbox: claims accepted for a worker that has ended could not be given back, they are recovered", zap.Int(telemetry.FieldClaims, len(attempts)), zap.Error(err))
		return
	}
	for i, r := range results {
		l.p.settled(stmt, r, applied[i])
	}
}

// takesHandoff: see Reserve. Of what a blind claim is going to find, or of what
// a wake-up told without a number, nobody knows how much it is.
func (s *share) takesHandoff() bool {
	return s.counted() && s.policy.breaker.closed() && !s.blind && !(s.more && s.few == 0)
}

// counted: what is due of it in the database is known from what this process
// has accepted since the last claim. A lane's rows may wait for each other, and
// legacy keys are claimed with quotas of their own.
func (s *share) counted() bool { return s.policy.lanes == nil && len(s.handler.LegacyKeys()) == 0 }

// accepted notes that so many statuses more are due in the database.
func (s *share) accepted(n int) {
	switch {
	case s.more && s.few == 0: // that is known to be unknown
	case !s.counted():
		s.wake()
	default:
		s.more, s.few = true, s.few+n
	}
}

// expected is how many slots no accept is given: those for what is due in the
// database, and those that accepts under way may yet fill although their
// reservation has lapsed.
func (s *share) expected() int { return s.slots(s.few+s.claiming+s.lapsed) + s.spare() }

// enough is how many slots a claim needs that is to find all that is due, if it
// is known how much that is.
func (s *share) enough() int { return s.slots(s.few) + s.spare() }

// spare is the slot for one more than is known, see messages. Groups of messages
// have room for it.
func (s *share) spare() int {
	if s.few > 0 && s.few%s.policy.share == 0 {
		return 1
	}
	return 0
}

// offer says how many messages of each share may be handed off now: what is
// left of the slots, spread evenly, and beyond that what lifts a handler to its
// fair share. While another handler has a backlog in the database, of unknown
// size, none takes more than its fair share: freed slots are for the claims.
// What is wanted is of handlers that have none.
func (b *board) offer(wanted map[*share]int) map[*share]int {
	if len(wanted) == 0 {
		return nil
	}
	running, queued := b.totals()
	free, backlog := b.concurrency+b.prefetch-running-queued, false
	for _, s := range b.shares {
		free -= s.expected()
		if wanted[s] == 0 {
			backlog = backlog || s.blind || (s.few == 0 && b.claimable(s))
		}
	}
	fair := b.fair(wanted)
	var order []*share // those that want least first: what they leave is for the others
	for _, s := range b.shares {
		if wanted[s] > 0 {
			order = append(order, s)
		}
	}
	slices.SortStableFunc(order, func(a, b *share) int { return cmp.Compare(wanted[a], wanted[b]) })
	granted := make(map[*share]int, len(order))
	for i, s := range order {
		own := min(fair, s.limit(b.concurrency)) - s.busy() - s.expected()
		part := max(free, 0) / (len(order) - i)
		if backlog {
			part = min(part, own)
		}
		n := min(s.slots(wanted[s]), max(part, own), b.room(s)-s.expected())
		if n <= 0 {
			continue
		}
		free -= n
		granted[s] = min(wanted[s], n*s.policy.share)
	}
	return granted
}
