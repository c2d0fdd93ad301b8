package scheduler

import (
	"cmp"
	"slices"
)

// Grant is the room that an accept has for what it may hand off (contract 5.17).
type Grant[T Task] struct {
	scheduler *Scheduler[T]
	messages  map[*Handler[T]]int
	lapsed    bool
}

// Reserve grants room for new messages, so many by handler key. Room is in slots that nothing
// else is going to take, and for a handler below its fair share beyond those. There is
// none for handlers whose circuit breaker is not closed or whose calls do not return, and
// none for those that may have older messages due in the database, unless these are known
// to be few, and have slots set aside.
func (s *Scheduler[T]) Reserve(wanted map[string]int) *Grant[T] {
	takers := make(map[*Handler[T]]int, len(wanted))
	for key, n := range wanted {
		if h := s.byKey[key]; h != nil && n > 0 && h.takesHandoff() && h.canRun() {
			takers[h] = n
		}
	}
	g := &Grant[T]{scheduler: s, messages: s.offer(takers)}
	for h, n := range g.messages {
		h.reserved += n
	}
	return g
}

// Empty reports whether it grants nothing, or has ended. A nil Grant is empty.
func (g *Grant[T]) Empty() bool { return g == nil || len(g.messages) == 0 }

// Messages are those granted of a handler.
func (g *Grant[T]) Messages(key string) int {
	if g.Empty() {
		return 0
	}
	return g.messages[g.scheduler.byKey[key]]
}

// Lapsed is true after Lapse.
func (g *Grant[T]) Lapsed() bool { return g.lapsed }

// Lapse frees the slots for claims, because the accept takes long. What it brings
// nevertheless waits in the queue, beyond what claims put there: at most as much again,
// because for other accepts the slots stay taken.
func (g *Grant[T]) Lapse() {
	if g.lapsed {
		return
	}
	g.lapsed = true
	for h, n := range g.messages {
		h.reserved -= n
		h.lapsed += n
	}
}

// End gives the slots back. Ending twice does nothing.
func (g *Grant[T]) End() {
	for h, n := range g.messages {
		if g.lapsed {
			h.lapsed -= n
		} else {
			h.reserved -= n
		}
	}
	g.messages = nil
}

// Accepted notes that so many messages more are due in the database.
func (s *Scheduler[T]) Accepted(key string, messages int) {
	s.polling.told(key)
	switch h := s.byKey[key]; {
	case h.more && h.few == 0: // that is known to be unknown
	case !h.rules.Counted:
		h.wake()
	default:
		h.more, h.few = true, h.few+messages
	}
}

// takesHandoff: see Reserve. Of what a blind claim is going to find, or of what somebody has
// told without a number, nobody knows how much it is.
func (h *Handler[T]) takesHandoff() bool {
	return h.rules.Counted && h.circuit() == Closed && !h.blind && !(h.more && h.few == 0)
}

// expected is how many slots no accept is given: those for what is due in the database, and
// those that accepts under way may yet fill although their grant has lapsed.
func (h *Handler[T]) expected() int { return h.slots(h.few+h.claiming+h.lapsed) + h.spare() }

// enough is how many slots a claim needs that is to find all that is due, if it is known how
// much that is.
func (h *Handler[T]) enough() int { return h.slots(h.few) + h.spare() }

// spare is the slot for one more than is known, see messages. Groups have room for it.
func (h *Handler[T]) spare() int {
	if h.few > 0 && h.few%h.rules.GroupSize == 0 {
		return 1
	}
	return 0
}

// offer says how many messages of each handler may be handed off now: what is left of the
// slots, spread evenly, and beyond that what lifts a handler to its fair share. While
// another handler has a backlog in the database, of unknown size, none takes more than its
// fair share: freed slots are for the claims. What is wanted is of handlers that have none.
func (s *Scheduler[T]) offer(wanted map[*Handler[T]]int) map[*Handler[T]]int {
	if len(wanted) == 0 {
		return nil
	}
	running, queued := s.totals()
	free, backlog := s.limits.Concurrency+s.limits.Prefetch-running-queued, false
	for _, h := range s.handlers {
		free -= h.expected()
		if wanted[h] == 0 {
			backlog = backlog || h.blind || (h.few == 0 && h.claimable())
		}
	}
	fair := s.fair(wanted)
	var order []*Handler[T] // those that want least first: what they leave is for the others
	for _, h := range s.handlers {
		if wanted[h] > 0 {
			order = append(order, h)
		}
	}
	slices.SortStableFunc(order, func(a, b *Handler[T]) int { return cmp.Compare(wanted[a], wanted[b]) })
	granted := make(map[*Handler[T]]int, len(order))
	for i, h := range order {
		own := min(fair, h.limit()) - h.busy() - h.expected()
		part := max(free, 0) / (len(order) - i)
		if backlog {
			part = min(part, own)
		}
		n := min(h.slots(wanted[h]), max(part, own), h.room()-h.expected())
		if n <= 0 {
			continue
		}
		free -= n
		granted[h] = min(wanted[h], n*h.rules.GroupSize)
	}
	return granted
}
