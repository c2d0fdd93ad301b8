package scheduler

import (
	"cmp"
	"slices"
)

// Grant is the number of messages that one accept may dispatch locally (contract 5.17).
type Grant[T Task] struct {
	scheduler *Scheduler[T]
	messages  map[*Handler[T]]int
	bytes     int
	expired   bool
}

// Reserve grants slots for new messages, wanted by handler key, and memory for their bytes. It grants slots that
// nothing else will take; a handler below its fair share gets more than those. It grants none to handlers with a
// circuit breaker that is not closed or with too many overdue calls. It grants none to handlers with older due messages
// in the database either, unless their number is known: then slots are kept free for these.
func (s *Scheduler[T]) Reserve(wanted map[string]int, bytes int) *Grant[T] {
	takers := make(map[*Handler[T]]int, len(wanted))
	for key, n := range wanted {
		if h := s.byKey[key]; h != nil && n > 0 && h.acceptsDispatch() && h.canRun() {
			takers[h] = n
		}
	}
	g := &Grant[T]{scheduler: s, messages: s.offer(takers)}
	for h, n := range g.messages {
		h.reserved += n
	}
	if len(g.messages) > 0 {
		g.bytes = min(bytes, s.limits.spare())
		s.limits.bytes += g.bytes
	}
	return g
}

// ReserveNext grants slots for the next messages of lanes that have just moved on, wanted by handler key: only such in
// which a message can start at once. If more of the handler's messages may be due, one of its slots is left to claims,
// so that lanes that always have a next message do not starve others.
func (s *Scheduler[T]) ReserveNext(wanted map[string]int) *Grant[T] {
	s.setShares(nil)
	g := &Grant[T]{scheduler: s, messages: map[*Handler[T]]int{}}
	for key, n := range wanted {
		h := s.byKey[key]
		slots := min(h.share()-h.busy(), h.rateRoom())
		if h.mayBeDue || h.claimsUnknown {
			slots--
		}
		if n = min(n, slots*h.rules.GroupSize); n > 0 && h.canRun() && h.circuit() == Closed {
			g.messages[h] = n
			h.reserved += n
			s.limits.idle = max(0, s.limits.idle-h.slots(n))
		}
	}
	return g
}

// ReserveRuns grants memory for messages that join a running group of the handler, and no slots.
func (s *Scheduler[T]) ReserveRuns(key string, bytes int) *Grant[T] {
	g := &Grant[T]{scheduler: s, messages: map[*Handler[T]]int{s.byKey[key]: 0}, bytes: min(bytes, s.limits.spare())}
	s.limits.bytes += g.bytes
	return g
}

// Bytes returns how many bytes the granted messages may have together; the last of them may exceed it.
func (g *Grant[T]) Bytes() int {
	if g.Empty() {
		return 0
	}
	return g.bytes
}

// Empty reports whether it grants nothing, or has ended. A nil Grant is empty.
func (g *Grant[T]) Empty() bool { return g == nil || len(g.messages) == 0 }

// Messages returns how many messages of the handler are granted.
func (g *Grant[T]) Messages(key string) int {
	if g.Empty() {
		return 0
	}
	return g.messages[g.scheduler.byKey[key]]
}

// Expired reports whether Expire was called.
func (g *Grant[T]) Expired() bool { return g.expired }

// Expire frees the slots for claims, because the accept takes long. For other accepts they stay reserved. If the accept
// dispatches after that, its messages wait in the queue.
func (g *Grant[T]) Expire() {
	if g.expired {
		return
	}
	g.expired = true
	for h, n := range g.messages {
		h.reserved -= n
		h.expired += n
	}
}

// End frees the slots. Calling it twice does nothing.
func (g *Grant[T]) End() {
	for h, n := range g.messages {
		if g.expired {
			h.expired -= n
		} else {
			h.reserved -= n
		}
	}
	if g.messages != nil {
		g.scheduler.limits.bytes -= g.bytes
	}
	g.messages = nil
}

// Accepted says that this process has stored so many more due messages of the handler.
func (s *Scheduler[T]) Accepted(key string, messages int) {
	s.polling.notified(key)
	switch h := s.byKey[key]; {
	case h.mayBeDue && h.knownDue == 0: // an unknown number stays unknown
	case !h.rules.Counted:
		h.expectWork()
	default:
		h.mayBeDue, h.knownDue = true, h.knownDue+messages
	}
}

// acceptsDispatch reports whether new messages may skip the claim. They may only while the number of older due messages
// is known: not during a claim that was started without it, and not after a notification, which has no number.
func (h *Handler[T]) acceptsDispatch() bool {
	return h.rules.Counted && h.circuit() == Closed && !h.claimsUnknown && !(h.mayBeDue && h.knownDue == 0)
}

// expected returns how many slots Reserve keeps free: those for due messages in the database, and those that accepts
// with an expired grant may still fill.
func (h *Handler[T]) expected() int { return h.slots(h.knownDue+h.claiming+h.expired) + h.spare() }

// slotsForDue returns how many slots a claim needs to find all messages that are known to be due.
func (h *Handler[T]) slotsForDue() int { return h.slots(h.knownDue) + h.spare() }

// spare returns the slot for the one message more that messages asks for, unless a group has room for it.
func (h *Handler[T]) spare() int {
	if h.knownDue > 0 && h.knownDue%h.rules.GroupSize == 0 {
		return 1
	}
	return 0
}

// offer returns how many messages of each handler may be dispatched locally: the free slots are spread evenly, and a
// handler below its fair share gets the difference on top. While another handler has a backlog of unknown size no
// handler gets more than its fair share, because the other slots are needed for claims.
func (s *Scheduler[T]) offer(wanted map[*Handler[T]]int) map[*Handler[T]]int {
	if len(wanted) == 0 {
		return nil
	}
	fair := s.setShares(wanted)
	running, queued := s.totals()
	free, backlog := s.limits.Concurrency+s.ahead(wanted)-running-queued, false
	for _, h := range s.handlers {
		free -= h.expected()
		if wanted[h] == 0 {
			backlog = backlog || h.claimsUnknown || (h.knownDue == 0 && h.claimable())
		}
	}
	var order []*Handler[T] // the smallest wishes first: the rest goes to the others
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
