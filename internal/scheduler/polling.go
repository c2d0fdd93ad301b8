package scheduler

import (
	"slices"
	"time"
)

// soonestPoll is the wait until the next poll after one that found new messages.
const soonestPoll = 100 * time.Millisecond

// polling decides how long to wait between polls. PollingInterval is the longest wait. If a claim finds new messages
// that were not notified, another process accepts them and cannot notify this one, so more will come: the next poll
// follows after 100 ms. The wait doubles with each poll that finds nothing.
type polling struct {
	longest time.Duration
	wait    time.Duration // before the next poll
	// polled are the handlers that the next claim asks for without a notification; claiming are the same for the
	// running claim.
	polled   map[string]bool
	claiming map[string]bool
}

func newPolling(longest time.Duration) polling {
	return polling{longest: longest, wait: longest, polled: map[string]bool{}, claiming: map[string]bool{}}
}

// PollWait returns how long to wait before the next poll by interval.
func (s *Scheduler[T]) PollWait() time.Duration { return s.polling.wait }

// backOff doubles the wait.
func (p *polling) backOff() {
	if p.wait < p.longest/2 {
		p.wait *= 2
	} else {
		p.wait = p.longest
	}
}

// poll says that the next claim asks for the handler without a notification.
func (p *polling) poll(handlerKey string) { p.polled[handlerKey] = true }

// notified says that work of the handler was notified. So its messages in the next claim do not count as found by a
// poll. Nor do those in the running claim, which may be the same messages.
func (p *polling) notified(handlerKey string) {
	delete(p.polled, handlerKey)
	delete(p.claiming, handlerKey)
}

// notifiedAll is notified for every handler.
func (p *polling) notifiedAll() {
	clear(p.polled)
	clear(p.claiming)
}

// beginClaim says that a claim for the handler starts.
func (p *polling) beginClaim(handlerKey string) {
	if p.polled[handlerKey] {
		delete(p.polled, handlerKey)
		p.claiming[handlerKey] = true
	}
}

// endClaim says that the claim has ended and has found new messages of these handlers. It shortens the wait, and
// returns true, if they were not notified.
func (p *polling) endClaim(handlerKeys []string) (sooner bool) {
	sooner = slices.ContainsFunc(handlerKeys, func(key string) bool { return p.claiming[key] })
	clear(p.claiming)
	if sooner {
		p.wait = min(soonestPoll, p.longest)
	}
	return sooner
}
