package scheduler

// Quota is what a claim asks for one handler.
type Quota struct {
	Messages int
	// Bytes ends the claim once the handler's messages have so many bytes. AtLeast messages, those that can start at
	// once, are claimed in any case.
	Bytes, AtLeast int
	// AskNextDue says that the claim must also ask when the handler's next message comes due, if it finds less than the
	// quota.
	AskNextDue bool
}

// Claimed is the result of a claim.
type Claimed struct {
	// Failed says that the claim returned an error.
	Failed bool
	// Full are the handlers that may have more due messages than were claimed.
	Full []string
	// NextDueKnown are the handlers whose next due time was asked.
	NextDueKnown []string
	// New are the handlers whose messages the claim found due since they were accepted. Retries do not count: they say
	// nothing about new messages.
	New []string
}

// Claim starts a claim and returns its quotas by handler key. It returns none, and starts no claim, if nothing may be
// due or no slot is free. Each claim must end with EndClaim.
func (s *Scheduler[T]) Claim() map[string]Quota {
	messages, atOnce := s.quotas()
	if len(messages) == 0 {
		return nil
	}
	bytes := s.limits.spare() / 2 // accepts may use the other half during the claim
	s.limits.claiming = bytes
	quotas := make(map[string]Quota, len(messages))
	for h, n := range messages {
		quotas[h.rules.Key] = Quota{Messages: n, Bytes: max(bytes/len(messages), 1), AtLeast: atOnce[h],
			AskNextDue: !h.nextDueKnown}
		h.claiming, h.claimsUnknown = n, h.knownDue == 0
		// A full claim sets it again, and so does a notification during the claim, which the claim may have missed.
		h.mayBeDue, h.knownDue = false, 0
		s.polling.beginClaim(h.rules.Key)
	}
	return quotas
}

// EndClaim records the result of the running claim. It returns true if the claim found new messages that were not
// notified: then PollWait is shorter.
func (s *Scheduler[T]) EndClaim(c Claimed) (sooner bool) {
	for _, h := range s.handlers {
		h.claiming, h.claimsUnknown = 0, false
	}
	s.limits.claiming = 0
	sooner = s.polling.endClaim(c.New)
	if c.Failed {
		s.expectWorkOfAll()
	}
	for _, key := range c.Full {
		s.byKey[key].expectWork()
	}
	for _, key := range c.NextDueKnown {
		s.byKey[key].nextDueKnown = true
	}
	return sooner
}

// ShouldClaim reports whether Claim would start a claim.
func (s *Scheduler[T]) ShouldClaim() bool {
	_, _, claims := s.room()
	return claims
}

// room returns how many slots' worth the next claim may ask for, and the fair share. claims says whether to claim now.
func (s *Scheduler[T]) room() (free, fair int, claims bool) {
	running, queued := s.totals()
	l := s.limits
	fair = s.setShares(nil)
	ahead := s.ahead(nil)
	free = max(0, min(l.BatchSize, l.Concurrency+ahead-running-queued))
	wanting, starving, known, enough := false, false, true, 0
	for _, h := range s.handlers {
		if h.claimable() {
			wanting = true
			starving = starving || h.busy() < min(fair, h.limit())
			known = known && h.knownDue > 0
			enough += h.slotsForDue()
		}
	}
	// A small claim costs as much as a large one, so wait until half of the prefetched messages are used. Do not wait
	// if a handler is below its fair share, or if there are slots for everything that is known to be due: Reserve keeps
	// these free and gives away the others, so waiting would free no more.
	needed := min(l.BatchSize, ahead/2+1)
	if known {
		needed = min(needed, enough)
	}
	return free, fair, wanting && (starving || free >= needed)
}

// quotas returns how many messages to claim for each handler. Together they take at most min(BatchSize, free slots +
// what may wait ahead) slots, spread evenly over the handlers that may have work. A handler below its fair share gets
// the difference on top, so that no other handler's backlog or hanging calls can starve it. atOnce is how many of them
// can start at once.
func (s *Scheduler[T]) quotas() (messages, atOnce map[*Handler[T]]int) {
	free, fair, claims := s.room()
	if !claims {
		return nil, nil
	}
	running, queued := s.totals()
	idle := max(0, s.limits.Concurrency-running-queued)
	var wanting []*Handler[T]
	for i := range s.handlers {
		if h := s.roundHandler(i); h.claimable() {
			wanting = append(wanting, h)
		}
	}
	s.roundStart++
	slots := make(map[*Handler[T]]int, len(wanting))
	part := func(of, i int) int {
		n := of / len(wanting)
		if i < of%len(wanting) {
			n++
		}
		return n
	}
	total := 0
	for i, h := range wanting {
		slots[h] = min(part(free, i), h.room())
		total += slots[h]
	}
	for _, h := range wanting {
		if short := min(min(fair, h.limit())-h.busy(), h.room()) - slots[h]; short > 0 && total < s.limits.BatchSize {
			short = min(short, s.limits.BatchSize-total)
			slots[h] += short
			total += short
		}
	}
	atOnce = make(map[*Handler[T]]int, len(wanting))
	for i, h := range wanting {
		atOnce[h] = min(slots[h], max(part(idle, i), min(fair, h.limit())-h.busy(), 1))
	}
	return s.messages(slots), atOnce
}

// messages converts slots to messages. A handler with groups gets as many as fit into its slots, but not more than its
// part of BatchSize or one full group. If the number of due messages is known the quota is one more: a claim that finds
// fewer than its quota has found all.
func (s *Scheduler[T]) messages(slots map[*Handler[T]]int) map[*Handler[T]]int {
	messages := make(map[*Handler[T]]int, len(slots))
	for h, n := range slots {
		switch size := h.rules.GroupSize; {
		case h.circuit().Probing():
			n = min(n, 1)
		case size > 1:
			n = min(n*size, max(s.limits.BatchSize/len(slots), size))
		}
		if h.knownDue > 0 {
			n = min(n, h.knownDue+1)
		}
		if n > 0 {
			messages[h] = n
		}
	}
	return messages
}
