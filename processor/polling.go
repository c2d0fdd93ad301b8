package processor

import (
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// soonestPoll is how soon a look by poll follows one that found work.
const soonestPoll = 100 * time.Millisecond

// polling says how long the loop waits before it looks for work that nobody has
// told it of. PollingInterval is the longest wait. Where a look finds due
// statuses of a handler that nobody has told of (another process accepts, and
// nothing wakes this one), more of them will come: the next poll is after
// 100 ms, and the wait doubles while nothing is found. It belongs to the loop's
// goroutine.
type polling struct {
	longest time.Duration
	wait    time.Duration   // before the next look by poll
	asks    map[string]bool // handlers, by key: nobody has told of work for them, the next claim will show
	asked   map[string]bool // the same, of the claim under way
}

func newPolling(longest time.Duration) polling {
	return polling{longest: longest, wait: longest, asks: map[string]bool{}, asked: map[string]bool{}}
}

// later notes that it is time for a look by poll.
func (p *polling) later() {
	if p.wait < p.longest/2 {
		p.wait *= 2
	} else {
		p.wait = p.longest
	}
}

// ask notes that the handler looks although nobody has told of work for it: by
// poll, or because something else comes due.
func (p *polling) ask(handlerKey string) { p.asks[handlerKey] = true }

// told notes that somebody has told of work for the handler: what is claimed of
// it from now on is no find, and neither is what a claim under way returns,
// which may be the same.
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

// finds reports whether the claim has found what nobody had told of. What waits
// for a time of its own, as retries do, is no find: it does not tell of more.
func (p *polling) finds(handlerKey string, c store.Claim) bool {
	return p.asked[handlerKey] && c.Due.Equal(c.CreatedAt)
}

// claimed notes that the claim has ended: after a find the next look is to come
// sooner.
func (p *polling) claimed(found bool) {
	clear(p.asked)
	if found {
		p.wait = min(soonestPoll, p.longest)
	}
}
