// Package scheduler decides which handler's messages are claimed, dispatched and started next: slots, quotas, fair
// shares and polling intervals (contract 5.2, 5.17). It reads no clock and does no I/O. Its types are not safe for
// concurrent use, except that an accept may call Messages on its own Grant at any time.
package scheduler

import "time"

// Limits are the limits of the whole inbox.
type Limits struct {
	// Concurrency is the number of slots. A group of messages takes one slot.
	Concurrency int
	// Prefetch bounds how many slots' worth of messages may be claimed beyond the free slots. How many are depends on
	// how fast the handlers are.
	Prefetch int
	// BatchSize is how many slots' worth of messages one claim may ask for.
	BatchSize int

	fair int // slots that each handler with work can count on, see Scheduler.fair
	idle int // slots that no handler holds
	// bytes is the size of all messages that wait, run or are granted to an accept; claiming is the size that the
	// running claim may bring.
	bytes, claiming int
}

// spare returns how many bytes of messages more may be in memory.
func (l *Limits) spare() int { return max(0, maxBytes-l.bytes-l.claiming) }

// maxStuck returns how many calls of one handler may ignore their cancellation. Each of them has its slot replaced; at
// the limit no further call of the handler starts (contract 5.4).
func (l *Limits) maxStuck() int { return l.Concurrency }

// Task is a claimed message that waits for a slot.
type Task interface {
	// MayGroup reports whether the message may run in one group with others.
	MayGroup() bool
	// QueuedAt returns when it was queued, and Size the bytes of its content and properties.
	QueuedAt() time.Time
	Size() int
}

// Scheduler divides the slots of one process among its handlers.
type Scheduler[T Task] struct {
	limits     Limits
	handlers   []*Handler[T]
	byKey      map[string]*Handler[T]
	polling    polling
	roundStart int // where the next round of claiming and starting begins
}

// New returns a Scheduler that expects no work. Call Refresh before the first claim.
func New[T Task](limits Limits, rules []Rules, pollingInterval time.Duration) *Scheduler[T] {
	limits.fair, limits.idle = limits.Concurrency, limits.Concurrency
	s := &Scheduler[T]{limits: limits, byKey: map[string]*Handler[T]{}, polling: newPolling(pollingInterval)}
	for _, r := range rules {
		h := &Handler[T]{rules: r, limits: &s.limits}
		s.handlers = append(s.handlers, h)
		s.byKey[r.Key] = h
	}
	return s
}

// Handlers returns all handlers in the order of their rules.
func (s *Scheduler[T]) Handlers() []*Handler[T] { return s.handlers }

// Handler returns the handler with the key, or nil.
func (s *Scheduler[T]) Handler(key string) *Handler[T] { return s.byKey[key] }

// roundHandler returns the i-th handler of this round. Each round begins with another handler.
func (s *Scheduler[T]) roundHandler(i int) *Handler[T] {
	return s.handlers[(s.roundStart+i)%len(s.handlers)]
}

func (s *Scheduler[T]) totals() (running, queued int) {
	for _, h := range s.handlers {
		running += h.running
		queued += h.queued()
	}
	return running, queued
}

// setShares sets, for all handlers, how many slots are idle and how many each handler with work can count on: with c
// slots and n such handlers, max(1, c/n) (contract 5.2). It returns the second. A handler whose messages are being
// accepted counts as one with work.
func (s *Scheduler[T]) setShares(accepting map[*Handler[T]]int) int {
	n, running := 0, 0
	for _, h := range s.handlers {
		if h.busy() > 0 || accepting[h] > 0 || h.claimable() {
			n++
		}
		running += h.running
	}
	s.limits.fair, s.limits.idle = max(1, s.limits.Concurrency/max(n, 1)), max(0, s.limits.Concurrency-running)
	return s.limits.fair
}

// Next removes the group to start now from its queue, and returns nil if no group may start. Handlers take turns for
// free slots. A handler below its fair share may start a group even if all slots are taken. The group holds its slot
// until Ended, NotStarted or Overdue, and its bytes until Ended, NotStarted or Returned.
func (s *Scheduler[T]) Next() (*Handler[T], []T) {
	running, _ := s.totals()
	fair := s.setShares(nil)
	var best *Handler[T]
	for i := range s.handlers {
		h := s.roundHandler(i)
		if len(h.queue) == 0 || h.paused || (running >= s.limits.Concurrency && h.running >= fair) ||
			h.running >= h.limit() || h.circuit().Shut() || !h.mayStart() {
			continue
		}
		if best == nil || h.running < best.running {
			best = h
		}
	}
	if best == nil {
		return nil, nil
	}
	size := best.rules.GroupSize
	if best.circuit().Probing() {
		size = 1
	}
	best.running++
	if best.rules.Rate != nil {
		best.rules.Rate.Take()
	}
	return best, best.take(size)
}

// Notify says that these handlers, or all, have new due messages.
func (s *Scheduler[T]) Notify(keys map[string]bool, all bool) {
	if all {
		s.polling.notifiedAll()
	}
	for key := range keys {
		s.polling.notified(key)
	}
	for _, h := range s.handlers {
		if all || keys[h.rules.Key] {
			h.expectWork()
		}
	}
}

// Poll makes the next claims ask for every handler although nothing was notified: because a message comes due, or
// because the polling interval has passed (byInterval). A due time does not postpone the next poll by interval. Due
// times may be closer together than polls for any length of time, and they say nothing about messages that other
// processes accept.
func (s *Scheduler[T]) Poll(byInterval bool) {
	for _, h := range s.handlers {
		if !h.mayBeDue { // otherwise work was notified or a claim was full
			s.polling.poll(h.rules.Key)
		}
	}
	if byInterval {
		s.polling.backOff()
	}
	s.Refresh()
}

// Refresh discards the known state of the database, so that the next claims ask for every handler.
func (s *Scheduler[T]) Refresh() {
	for _, h := range s.handlers {
		h.nextDueKnown = false
	}
	s.expectWorkOfAll()
}

func (s *Scheduler[T]) expectWorkOfAll() {
	for _, h := range s.handlers {
		h.expectWork()
	}
}
