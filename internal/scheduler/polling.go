package scheduler

import (
	"slices"
	"time"
)

// soonestPoll is how soon a look by poll follows one that found work.
const soonestPoll = 100 * time.Millisecond

// polling says how long to wait before looking for work that nobody has told of. PollingInterval
// is the longest wait. Where a look finds due messages of a handler that nobody has told of
// (another process accepts, and nothing wakes this one), more of them will come: the next
// poll is after 100 ms, and the wait doubles while nothing is found.
type polling struct {
	longest time.Duration
	wait    time.Duration   // before the next look by poll
	asks    map[string]bool // handlers, by key: nobody has told of work for them, the next claim will show
	asked   map[string]bool // the same, of the claim under way
}

func newPolling(longest time.Duration) polling {
	return polling{longest: longest, wait: longest, asks: map[string]bool{}, asked: map[string]bool{}}
}

// PollWait is how long to wait before the next look by poll.
func (s *Scheduler[T]) PollWait() time.Duration { return s.polling.wait }

// later notes that it is time for a look by poll.
func (p *polling) later() {
	if p.wait < p.longest/2 {
		p.wait *= 2
	} else {
		p.wait = p.longest
	}
}

// ask notes that the handler looks although nobody has told of work for it: by poll, or
// because something else comes due.
func (p *polling) ask(handlerKey string) { p.asks[handlerKey] = true }

// told notes that somebody has told of work for the handler: what is claimed of it from now
// on is no find, and neither is what a claim under way returns, which may be the same.
func (p *polling) told(handlerKey string) {
	delete(p.asks, handlerKey)
	delete(p.asked, handlerKey)
}

// toldAll is told of every handler.
func (p *polling) toldAll() {
	clear(p.asks)
	clear(p.asked)
}

// claim notes that a claim for the handler begins.
func (p *polling) claim(handlerKey string) {
	if p.asks[handlerKey] {
		delete(p.asks, handlerKey)
		p.asked[handlerKey] = true
	}
}

// claimed notes that the claim has ended and found new work of these handlers. If nobody had
// told of it, the next look is to come sooner.
func (p *polling) claimed(handlerKeys []string) (sooner bool) {
	sooner = slices.ContainsFunc(handlerKeys, func(key string) bool { return p.asked[key] })
	clear(p.asked)
	if sooner {
		p.wait = min(soonestPoll, p.longest)
	}
	return sooner
}
