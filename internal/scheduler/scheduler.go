// Package scheduler decides of which handlers messages are claimed, handed off and started
// next: slots, quotas, fair shares and the intervals of polling (contract 5.2, 5.17). It
// reads no clock and does no I/O. Its types are for one goroutine at a time, but for
// Grant.Messages, which the accept that has the grant may ask without a lock.
package scheduler

import "time"

// Limits are the inbox's.
type Limits struct {
	// Concurrency is the number of slots. A group of messages takes one.
	Concurrency int
	// Prefetch is how many slots' worth may be claimed beyond the free ones.
	Prefetch int
	// BatchSize is how many slots' worth one claim may ask for.
	BatchSize int
}

// maxStuck bounds the slots that are replaced for a handler whose calls do not return: at
// that many no call of it starts any more (contract 5.4).
func (l *Limits) maxStuck() int { return l.Concurrency }

// Task is a claimed message that waits for a slot.
type Task interface {
	// MayShare is false if it must run alone although its handler takes groups.
	MayShare() bool
}

// Scheduler knows the share of every handler in the work of one process.
type Scheduler[T Task] struct {
	limits   Limits
	handlers []*Handler[T]
	byKey    map[string]*Handler[T]
	polling  polling
	turn     int // where the next round of claiming and starting begins
}

// New makes the Scheduler of a process that knows nothing of the database yet: LookAnew
// makes it claim.
func New[T Task](limits Limits, rules []Rules, pollingInterval time.Duration) *Scheduler[T] {
	s := &Scheduler[T]{limits: limits, byKey: map[string]*Handler[T]{}, polling: newPolling(pollingInterval)}
	for _, r := range rules {
		h := &Handler[T]{rules: r, limits: &s.limits}
		s.handlers = append(s.handlers, h)
		s.byKey[r.Key] = h
	}
	return s
}

// Handlers are in the order of the rules.
func (s *Scheduler[T]) Handlers() []*Handler[T] { return s.handlers }

// Handler is nil for an unknown key.
func (s *Scheduler[T]) Handler(key string) *Handler[T] { return s.byKey[key] }

// inTurn is the i-th handler of this round: each round begins with another.
func (s *Scheduler[T]) inTurn(i int) *Handler[T] { return s.handlers[(s.turn+i)%len(s.handlers)] }

func (s *Scheduler[T]) totals() (running, queued int) {
	for _, h := range s.handlers {
		running += h.running
		queued += h.queued()
	}
	return running, queued
}

// fair is the number of slots every handler with work can count on: with c slots and n such
// handlers, max(1, c/n) (contract 5.2). Those of which messages are being accepted have
// work, too.
func (s *Scheduler[T]) fair(accepting map[*Handler[T]]int) int {
	n := 0
	for _, h := range s.handlers {
		if h.busy() > 0 || accepting[h] > 0 || h.claimable() {
			n++
		}
	}
	return max(1, s.limits.Concurrency/max(n, 1))
}

// Next takes the group to start now off its queue, if a slot is free: handlers take turns,
// and one below its fair share may start although all slots are taken. Without a group it
// returns nil. The group's slot is taken until Ended or Overdue.
func (s *Scheduler[T]) Next() (*Handler[T], []T) {
	running, _ := s.totals()
	fair := s.fair(nil)
	var best *Handler[T]
	for i := range s.handlers {
		h := s.inTurn(i)
		if len(h.queue) == 0 || (running >= s.limits.Concurrency && h.running >= fair) ||
			h.running >= h.limit() || h.circuit().Shut() {
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
	return best, best.take(size)
}

// Told notes that somebody has told of due work of these handlers, or of all.
func (s *Scheduler[T]) Told(keys map[string]bool, all bool) {
	if all {
		s.polling.toldAll()
	}
	for key := range keys {
		s.polling.told(key)
	}
	for _, h := range s.handlers {
		if all || keys[h.rules.Key] {
			h.wake()
		}
	}
}

// Look makes every handler look for work, because something comes due or, by poll, because
// it is time for that. The one does not put off the other: due times may be closer than
// polls for ever, and what they find says nothing of when somebody else's work comes.
func (s *Scheduler[T]) Look(poll bool) {
	for _, h := range s.handlers {
		if !h.more { // else a full claim or somebody has told
			s.polling.ask(h.rules.Key)
		}
	}
	if poll {
		s.polling.later()
	}
	s.LookAnew()
}

// LookAnew forgets what is known of the database and makes every handler ask.
func (s *Scheduler[T]) LookAnew() {
	for _, h := range s.handlers {
		h.dueAsked = false
	}
	s.wakeAll()
}

func (s *Scheduler[T]) wakeAll() {
	for _, h := range s.handlers {
		h.wake()
	}
}
