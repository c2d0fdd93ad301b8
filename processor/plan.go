package processor

import "github.com/gorm-inbox/inbox/handler"

// share is one handler's share of the work in this process. It is counted in
// slots: a group of messages takes one.
type share struct {
	handler *handler.Handler
	policy  *policy
	queue   []*task // claimed, not started
	alone   int     // of the queue: those that may share a slot with no other
	running int     // groups
	stuck   int     // groups that ignore their cancelled context; they hold no slot
	// more is true while the database may have due statuses for the handler;
	// few, if positive, at most so many, all of them accepted by this process.
	more bool
	few  int
	// claiming is how many messages the claim under way asks for; blind, that it
	// does so without knowing what there is.
	claiming int
	blind    bool
	reserved int  // messages that accepts under way may hand off (contract 5.17)
	lapsed   int  // likewise, of accepts that take long: these keep no claim waiting
	asked    bool // when its next status comes due has been asked since the last look
	paused   bool
	broken   bool // the circuit breaker was open at the last look
}

// queued is how many slots the queue is going to take, and what accepts under
// way may add to it.
func (s *share) queued() int { return s.alone + s.slots(len(s.queue)-s.alone+s.reserved) }

// push lets attempts wait at the front or the back of the queue.
func (s *share) push(attempts []*task, front bool) {
	if front {
		s.queue = append(attempts, s.queue...)
	} else {
		s.queue = append(s.queue, attempts...)
	}
	for _, a := range attempts {
		if s.policy.share > 1 && !a.mayShare() {
			s.alone++
		}
	}
}

// take takes the next group off the queue.
func (s *share) take(size int) (g *group) {
	if s.policy.share > 1 && !s.queue[0].mayShare() {
		s.alone--
	}
	g, s.queue = takeGroup(s.queue, size)
	return g
}

// drop empties the queue and returns what was in it.
func (s *share) drop() []*task {
	dropped := s.queue
	s.queue, s.alone = nil, 0
	return dropped
}

// slots is how many slots so many new messages take.
func (s *share) slots(messages int) int { return (messages + s.policy.share - 1) / s.policy.share }

func (s *share) busy() int { return s.running + s.queued() }

// limit is how many slots the handler may hold at once: its own limit, and one
// while its circuit breaker tries a probe. Calls that do not return hold none
// of the inbox's, but go on running, and count here.
func (s *share) limit(concurrency int) int {
	limit := concurrency
	if own := s.handler.Concurrency(); own > 0 {
		limit = own - s.stuck
	}
	if s.policy.breaker.probing() {
		limit = min(limit, 1)
	}
	return max(limit, 0)
}

// board is what the loop knows: every handler's share and the limits. It
// belongs to the loop's goroutine.
type board struct {
	shares      []*share
	byHandler   map[*handler.Handler]*share
	concurrency int
	prefetch    int
	batchSize   int
	turn        int // where the next round of claiming and starting begins
}

func newBoard(registry *handler.Registry, policies map[*handler.Handler]*policy, opts Options) *board {
	b := &board{byHandler: map[*handler.Handler]*share{}, concurrency: opts.Concurrency, prefetch: opts.prefetch(), batchSize: opts.BatchSize}
	for _, h := range registry.Handlers() {
		s := &share{handler: h, policy: policies[h]}
		b.shares = append(b.shares, s)
		b.byHandler[h] = s
	}
	return b
}

// maxStuck bounds the slots replaced for a handler whose calls do not return:
// at that many its claiming stops (contract 5.4).
func (b *board) maxStuck() int { return b.concurrency }

func (b *board) claimable(s *share) bool {
	return s.more && !s.paused && b.canRun(s) && !s.policy.breaker.shut() && b.room(s) > 0
}

// canRun is false while so many calls of a handler do not return that no other
// may start: what is queued is for another worker then.
func (b *board) canRun(s *share) bool { return s.stuck < b.maxStuck() && s.limit(b.concurrency) > 0 }

// room is how many more slots' worth may be claimed for a handler with a limit
// of its own: what runs and as much again, that no worker hoards what others
// could run. A probe comes alone.
func (b *board) room(s *share) int {
	limit := s.limit(b.concurrency)
	switch {
	case s.policy.breaker.probing():
		return limit - s.busy()
	case s.handler.Concurrency() > 0:
		return limit + min(limit, b.prefetch) - s.busy()
	default:
		return b.concurrency + b.prefetch + b.batchSize
	}
}

func (b *board) totals() (running, queued int) {
	for _, s := range b.shares {
		running += s.running
		queued += s.queued()
	}
	return running, queued
}

// fair is the number of slots every handler with work can count on: with c
// slots and h such handlers, max(1, c/h) (contract 5.2). Those of which
// statuses are being accepted have work, too.
func (b *board) fair(accepting map[*share]int) int {
	h := 0
	for _, s := range b.shares {
		if s.busy() > 0 || accepting[s] > 0 || b.claimable(s) {
			h++
		}
	}
	return max(1, b.concurrency/max(h, 1))
}

// limits says how many messages to claim for each share now: together no more
// slots' worth than min(BatchSize, free slots + prefetch), spread evenly over
// the handlers that may have work, and beyond that whatever lifts a handler to
// its fair share, so that no other handler's backlog or hanging calls keep it
// from it. nil means that there is nothing to claim.
func (b *board) limits() map[*share]int {
	running, queued := b.totals()
	free := max(0, min(b.batchSize, b.concurrency+b.prefetch-running-queued))
	fair := b.fair(nil)
	var wanting []*share
	starving, known, enough := false, true, 0
	for i := range b.shares {
		s := b.shares[(b.turn+i)%len(b.shares)]
		if b.claimable(s) {
			wanting = append(wanting, s)
			starving = starving || s.busy() < min(fair, s.limit(b.concurrency))
			known = known && s.few > 0
			enough += s.enough()
		}
	}
	if len(wanting) == 0 {
		return nil
	}
	// A claim for a slot or two costs as much as one for many: wait for half
	// the prefetch to drain, unless a handler runs short, or there are slots
	// for all that is known to be due. Those are set aside (see offer): no more
	// may come, because the others go to what is accepted meanwhile.
	needed := min(b.batchSize, b.prefetch/2+1)
	if known {
		needed = min(needed, enough)
	}
	if !starving && free < needed {
		return nil
	}
	b.turn++
	slots := make(map[*share]int, len(wanting))
	total := 0
	for i, s := range wanting {
		part := free / len(wanting)
		if i < free%len(wanting) {
			part++
		}
		slots[s] = min(part, b.room(s))
		total += slots[s]
	}
	for _, s := range wanting {
		if short := min(fair, s.limit(b.concurrency)) - s.busy() - slots[s]; short > 0 && total < b.batchSize {
			short = min(short, b.batchSize-total)
			slots[s] += short
			total += short
		}
	}
	return b.messages(slots)
}

// messages turns slots into messages: as many as may share one, but of all
// handlers no more than BatchSize beyond a full group. Where it is known how
// many there are, it is one more than that: the claim that finds no more has
// found all, and the slots left over are free for what is accepted meanwhile.
func (b *board) messages(slots map[*share]int) map[*share]int {
	limits := make(map[*share]int, len(slots))
	for s, n := range slots {
		if s.policy.breaker.probing() {
			limits[s] = min(n, 1)
			continue
		}
		limits[s] = n
		if s.policy.share > 1 {
			limits[s] = min(n*s.policy.share, max(b.batchSize/len(slots), s.policy.share))
		}
		if s.few > 0 {
			limits[s] = min(limits[s], s.few+1)
		}
	}
	for s, n := range limits {
		if n <= 0 {
			delete(limits, s)
		}
	}
	if len(limits) == 0 {
		return nil
	}
	return limits
}

// next takes the group to start now, if a slot is free: handlers take turns,
// and one below its fair share may start although all slots are taken.
func (b *board) next() *group {
	running, _ := b.totals()
	fair := b.fair(nil)
	var best *share
	for i := range b.shares {
		s := b.shares[(b.turn+i)%len(b.shares)]
		if len(s.queue) == 0 || (running >= b.concurrency && s.running >= fair) ||
			s.running >= s.limit(b.concurrency) || s.policy.breaker.shut() {
			continue
		}
		if best == nil || s.running < best.running {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	size := best.policy.share
	if best.policy.breaker.probing() {
		size = 1
	}
	g := best.take(size)
	best.running++
	return g
}

// wake marks handlers as possibly having due statuses; no keys means all.
func (b *board) wake(keys map[string]bool, all bool) {
	for _, s := range b.shares {
		if all || keys[s.handler.Key()] {
			s.wake()
		}
	}
}

// wake: the database may have due statuses, nobody knows how many.
func (s *share) wake() { s.more, s.few = true, 0 }

// forgetDue makes the database be asked again what comes due when.
func (b *board) forgetDue() {
	for _, s := range b.shares {
		s.asked = false
	}
}
