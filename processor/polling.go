package processor

import "time"

// soonestPoll is how soon a look by poll follows one that found work.
const soonestPoll = 100 * time.Millisecond

// polling says how long the loop waits before it looks for work that nobody has
// told it of. PollingInterval is the longest wait. Where such a look finds due
// statuses (another process accepts, and nothing wakes this one), more of them
// will come: the next look is after 100 ms, and the wait doubles while nothing
// is found. It belongs to the loop's goroutine.
type polling struct {
	longest time.Duration
	wait    time.Duration // before the next look by poll
	asks    bool          // nothing but the poll asks for the next claim
	asked   bool          // nothing but the poll asked for the claim under way
}

func newPolling(longest time.Duration) polling { return polling{longest: longest, wait: longest} }

// look notes that it is time for a look by poll; told says that the loop knows
// of work anyway.
func (p *polling) look(told bool) {
	if p.wait < p.longest/2 {
		p.wait *= 2
	} else {
		p.wait = p.longest
	}
	p.asks = !told
}

// tell notes that somebody has told of work: what is claimed from now on is no
// find, and neither is what a claim under way returns, which may be the same.
func (p *polling) tell() { p.asks, p.asked = false, false }

// claim notes that a claim begins.
func (p *polling) claim() { p.asks, p.asked = false, p.asks }

// claimed notes that the claim has ended and reports whether it found what
// nobody had told of: the next look is then to come sooner.
func (p *polling) claimed(statuses int) (sooner bool) {
	sooner = p.asked && statuses > 0
	p.asked = false
	if sooner {
		p.wait = min(soonestPoll, p.longest)
	}
	return sooner
}
