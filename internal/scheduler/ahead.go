package scheduler

import "time"

const (
	// aheadTime is how long a handler's queue should last: long enough for the next claim to come before it is empty,
	// and short enough that other workers miss little.
	aheadTime = 100 * time.Millisecond
	// maxBytes is how much all messages in memory may hold together, unless so many as can start at once hold more.
	maxBytes = 32 << 20
	// minSpare is how many bytes must be spare for messages to be claimed that cannot start at once. With less, a claim
	// would follow each message that ends.
	minSpare = maxBytes / 4
	// patience is how long a message may wait in the queue. Then other workers may run it.
	patience = time.Second
	// tookWeight and sizeWeight are the weights of all earlier measurements, beside a new one. Hundreds of calls may
	// end at once after the process was held up: no such round may decide alone.
	tookWeight, sizeWeight = 255, 15
)

// pace holds the measurements of a handler's calls and messages. It decides how many messages may wait in the handler's
// queue.
type pace struct {
	took time.Duration // for how long a group holds its slot, on average; 0 if none has ended yet
	size int           // bytes of a message, on average
	late time.Time     // when messages were last found to have waited for too long
}

func (p *pace) ended(took time.Duration) {
	if took = max(took, 1); p.took == 0 {
		p.took = took
	} else {
		p.took = (tookWeight*p.took + took) / (tookWeight + 1)
	}
}

// queued rises at once and falls slowly, because too much in memory is worse than too little.
func (p *pace) queued(size int) { p.size = max(size, (sizeWeight*p.size+size)/(sizeWeight+1)) }

// waitedTooLong notes that a message has waited for too long: the handler is slower than was measured, perhaps because
// no call has ended yet.
func (p *pace) waitedTooLong(now time.Time) {
	p.took, p.late = min(max(2*p.took, patience), time.Hour), now
}

// share returns how many slots the handler can count on now: its fair share, or its slots and the idle ones.
func (h *Handler[T]) share() int {
	return min(h.limit(), max(h.limits.fair, h.running+h.limits.idle))
}

// ahead returns how many slots' worth of messages may wait in the handler's queue: as many as its slots run in
// aheadTime, but no more than Prefetch and maxBytes. None may wait if calls take longer than aheadTime for each slot,
// or if the messages in memory leave too few bytes. Before the first call has ended it is one message for each slot.
func (h *Handler[T]) ahead() int {
	if h.limits.spare() < minSpare {
		return 0
	}
	slots := h.share()
	n := slots
	if h.pace.took > 0 {
		n = int(min(int64(slots)*int64(aheadTime)/int64(h.pace.took), int64(h.limits.Prefetch)))
	}
	if group := h.pace.size * h.rules.GroupSize; group > 0 {
		n = min(n, maxBytes/group+1)
	}
	return min(n, h.limits.Prefetch)
}

// ahead returns how many slots' worth of messages may wait in all queues together.
func (s *Scheduler[T]) ahead(accepting map[*Handler[T]]int) int {
	n := 0
	for _, h := range s.handlers {
		if len(h.queue) > 0 || accepting[h] > 0 || h.claimable() {
			n += h.ahead()
		}
	}
	return min(n, s.limits.Prefetch)
}

// LateAt returns when the first message that others may run will have waited for too long; zero if none waits. The
// messages that DropLate has kept get as much time again.
func (h *Handler[T]) LateAt() time.Time {
	for _, t := range h.queue {
		if h.mustKeep(t) {
			continue
		}
		since := t.QueuedAt()
		if since.Before(h.pace.late) {
			since = h.pace.late
		}
		return since.Add(patience)
	}
	return time.Time{}
}

// mustKeep reports whether no other worker may run the message, because none would know that it must run alone.
func (h *Handler[T]) mustKeep(t T) bool { return h.rules.GroupSize > 1 && !t.MayGroup() }

// DropLate returns the messages that other workers should run, because one of them has waited for too long. As many
// stay as may wait ahead of a handler that is so slow.
func (h *Handler[T]) DropLate(now time.Time) (dropped []T) {
	if late := h.LateAt(); late.IsZero() || now.Before(late) {
		return nil
	}
	h.pace.waitedTooLong(now)
	keep := h.ahead() * h.rules.GroupSize
	var kept []T
	for i, t := range h.queue {
		if i < keep || h.mustKeep(t) {
			kept = append(kept, t)
		} else {
			dropped = append(dropped, t)
			h.limits.bytes -= t.Size()
		}
	}
	h.queue = kept
	return dropped
}
