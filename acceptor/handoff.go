package acceptor

import "github.com/gorm-inbox/inbox/internal/store"

// Reservation is the processor's promise to run some of the statuses that one
// accept inserts, claimed for its worker (contract 5.17). One of Deliver and
// Abandon ends it, after the transaction.
type Reservation interface {
	// Worker is for whom they are claimed.
	Worker() string
	// Granted is how many statuses of a handler may be.
	Granted(handlerKey string) int
	// Deliver hands off what was claimed and committed, and tells of how many
	// statuses by handler key were inserted for anybody to claim. It never
	// waits for handlers.
	Deliver(claims []store.Claim, unclaimed map[string]int)
	// Abandon says that nothing was committed; or, if the answer was lost, that
	// nobody knows.
	Abandon(lost bool)
}

// handoff is the hand-off of one accept; nil if there is none.
type handoff struct {
	plan        *plan
	reservation Reservation
	ended       bool
}

// beginHandoff marks the statuses of the plan that the processor has room for,
// those accepted first.
func (a *Acceptor) beginHandoff(p *plan) *handoff {
	if a.reserve == nil || len(p.batch.Messages) == 0 {
		return nil
	}
	wanted := make(map[string]int, len(p.keys))
	for _, m := range p.batch.Messages {
		for _, s := range m.Handlers {
			wanted[s.HandlerKey]++
		}
	}
	r := a.reserve(wanted)
	if r == nil {
		return nil
	}
	granted := make(map[string]int, len(wanted))
	for key := range wanted {
		granted[key] = r.Granted(key)
	}
	for _, m := range p.batch.Messages {
		for i := range m.Handlers {
			if s := &m.Handlers[i]; granted[s.HandlerKey] > 0 {
				granted[s.HandlerKey]--
				s.Claim, p.batch.Claimer = true, r.Worker()
			}
		}
	}
	return &handoff{plan: p, reservation: r}
}

// committed delivers what was claimed. Of messages that were known before it
// is not said which handlers got a row: each may have.
func (h *handoff) committed(stored []store.Accepted) {
	if h == nil {
		return
	}
	var claims []store.Claim
	unclaimed := map[string]int{}
	for row, s := range stored {
		if s.StatusesAdded == 0 {
			continue
		}
		for _, status := range h.plan.batch.Messages[row].Handlers {
			unclaimed[status.HandlerKey]++
		}
		for _, c := range s.Claims {
			if unclaimed[c.HandlerKey]--; unclaimed[c.HandlerKey] == 0 {
				delete(unclaimed, c.HandlerKey)
			}
		}
		claims = append(claims, s.Claims...)
	}
	h.ended, h.plan.told = true, true
	h.reservation.Deliver(claims, unclaimed)
}

// failed gives the reservation back. Only an accept that failed at its commit may
// have been committed.
func (h *handoff) failed(err error) {
	if h == nil {
		return
	}
	h.ended = true
	h.reservation.Abandon(store.MayBeCommitted(err))
}

// end makes sure that the reservation ends, also when something panics.
func (h *handoff) end() {
	if h != nil && !h.ended {
		h.ended = true
		h.reservation.Abandon(true)
	}
}
