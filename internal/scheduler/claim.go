package scheduler

// Quota is what a claim asks for.
type Quota struct {
	Messages int
	// AskDue: when the handler's next message comes due is to be asked, too, if the claim
	// finds less than the quota.
	AskDue bool
}

// Claimed is what a claim came to.
type Claimed struct {
	// Failed: nothing is known of the database.
	Failed bool
	// Full are the handlers of which as much was found as was asked for: there may be more.
	Full []string
	// DueAsked are those whose next due time was asked.
	DueAsked []string
	// New are the handlers of which it found messages that are due since they were accepted. What
	// waits for a time of its own, as retries do, does not tell of more.
	New []string
}

// Claim begins a claim, and returns how many messages to claim of which handlers, by key. No
// quotas: there is nothing to claim now, and no claim begins. A claim that has begun must
// end with EndClaim.
func (s *Scheduler[T]) Claim() map[string]Quota {
	messages := s.quotas()
	if len(messages) == 0 {
		return nil
	}
	quotas := make(map[string]Quota, len(messages))
	for h, n := range messages {
		quotas[h.rules.Key] = Quota{Messages: n, AskDue: !h.dueAsked}
		h.claiming, h.blind = n, h.few == 0
		// Set again by a full claim, and by who tells of work while the claim is under way,
		// which may have missed it.
		h.more, h.few = false, 0
		s.polling.claim(h.rules.Key)
	}
	return quotas
}

// EndClaim learns from a claim what is left in the database. It returns true if the claim found
// what nobody had told of: then the next poll comes sooner.
func (s *Scheduler[T]) EndClaim(c Claimed) (sooner bool) {
	for _, h := range s.handlers {
		h.claiming, h.blind = 0, false
	}
	sooner = s.polling.claimed(c.New)
	if c.Failed {
		s.wakeAll()
	}
	for _, key := range c.Full {
		s.byKey[key].wake()
	}
	for _, key := range c.DueAsked {
		s.byKey[key].dueAsked = true
	}
	return sooner
}

// quotas says how many messages to claim of each handler now: together no more slots' worth
// than min(BatchSize, free slots + prefetch), spread evenly over the handlers that may have
// work, and beyond that whatever lifts a handler to its fair share, so that no other
// handler's backlog or hanging calls keep it from it.
func (s *Scheduler[T]) quotas() map[*Handler[T]]int {
	running, queued := s.totals()
	l := s.limits
	free := max(0, min(l.BatchSize, l.Concurrency+l.Prefetch-running-queued))
	fair := s.fair(nil)
	var wanting []*Handler[T]
	starving, known, enough := false, true, 0
	for i := range s.handlers {
		h := s.inTurn(i)
		if h.claimable() {
			wanting = append(wanting, h)
			starving = starving || h.busy() < min(fair, h.limit())
			known = known && h.few > 0
			enough += h.enough()
		}
	}
	if len(wanting) == 0 {
		return nil
	}
	// A claim for a slot or two costs as much as one for many: wait for half the prefetch to
	// drain, unless a handler runs short, or there are slots for all that is known to be due.
	// Those are set aside (see Reserve): no more may come, because the others go to what is
	// accepted meanwhile.
	needed := min(l.BatchSize, l.Prefetch/2+1)
	if known {
		needed = min(needed, enough)
	}
	if !starving && free < needed {
		return nil
	}
	s.turn++
	slots := make(map[*Handler[T]]int, len(wanting))
	total := 0
	for i, h := range wanting {
		part := free / len(wanting)
		if i < free%len(wanting) {
			part++
		}
		slots[h] = min(part, h.room())
		total += slots[h]
	}
	for _, h := range wanting {
		if short := min(fair, h.limit()) - h.busy() - slots[h]; short > 0 && total < l.BatchSize {
			short = min(short, l.BatchSize-total)
			slots[h] += short
			total += short
		}
	}
	return s.messages(slots)
}

// messages turns slots into messages: as many as may share one, but of all handlers no more
// than BatchSize beyond a full group. Where it is known how many there are, it is one more
// than that: the claim that finds no more has found all, and the slots left over are free
// for what is accepted meanwhile.
func (s *Scheduler[T]) messages(slots map[*Handler[T]]int) map[*Handler[T]]int {
	messages := make(map[*Handler[T]]int, len(slots))
	for h, n := range slots {
		switch size := h.rules.GroupSize; {
		case h.circuit().Probing():
			n = min(n, 1)
		case size > 1:
			n = min(n*size, max(s.limits.BatchSize/len(slots), size))
		}
		if h.few > 0 {
			n = min(n, h.few+1)
		}
		if n > 0 {
			messages[h] = n
		}
	}
	return messages
}
