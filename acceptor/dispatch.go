package acceptor

import "github.com/gorm-inbox/inbox/internal/store"

// Reservation is the processor's promise to run some of the statuses that one accept inserts, claimed for its worker
// (contract 5.17). Exactly one of Deliver and Abandon ends it, after the transaction.
type Reservation interface {
	// Worker is the ID of the worker for which they are claimed.
	Worker() string
	// Granted is how many statuses of a handler may be claimed.
	Granted(handlerKey string) int
	// Bytes is how many bytes the messages of these statuses may have together, counted once for each
	// status. The last of them may exceed it.
	Bytes() int
	// Deliver dispatches the statuses that were claimed and committed. unclaimed counts by handler key the inserted
	// statuses that any worker may claim. It never waits for handlers.
	Deliver(claims []store.Claim, unclaimed map[string]int)
	// Abandon means that nothing was committed, or, if lost is true, that this is unknown because the response was lost.
	Abandon(lost bool)
}

// dispatch is the local dispatch of one accept, nil if there is none.
type dispatch struct {
	plan        *plan
	reservation Reservation
	ended       bool
}

// beginDispatch marks the statuses of the plan for which the processor has free slots, in the order of the messages.
// It leaves those with a time to claims, because the database's clock judges whether they are due.
func (a *Acceptor) beginDispatch(p *plan) *dispatch {
	if a.cfg.Reserve == nil || len(p.batch.Messages) == 0 {
		return nil
	}
	wanted, bytes := make(map[string]int, len(p.keys)), 0
	for _, m := range p.batch.Messages {
		for _, s := range m.Handlers {
			if s.NotBefore.IsZero() {
				wanted[s.HandlerKey]++
				bytes += m.Size()
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	r := a.cfg.Reserve(wanted, bytes)
	if r == nil {
		return nil
	}
	granted := make(map[string]int, len(wanted))
	for key := range wanted {
		granted[key] = r.Granted(key)
	}
	left := r.Bytes()
	for _, m := range p.batch.Messages {
		for i := range m.Handlers {
			if s := &m.Handlers[i]; s.NotBefore.IsZero() && granted[s.HandlerKey] > 0 && (left > 0 || bytes == 0) {
				granted[s.HandlerKey]--
				left -= m.Size()
				s.Claim, p.batch.Claimer = true, r.Worker()
			}
		}
	}
	return &dispatch{plan: p, reservation: r}
}

// committed delivers the claimed statuses. For messages that were known before, the store does not report which
// handlers got a row, so each of them counts as unclaimed.
func (h *dispatch) committed(stored []store.Accepted) {
	if h == nil {
		return
	}
	n := 0
	for _, s := range stored {
		n += len(s.Claims)
	}
	claims, unclaimed := make([]store.Claim, 0, n), map[string]int{}
	for row, s := range stored {
		if s.StatusesAdded == 0 {
			continue
		}
		for _, status := range h.plan.batch.Messages[row].Handlers {
			if !status.NotBefore.After(h.plan.now) {
				unclaimed[status.HandlerKey]++
			}
		}
		for _, c := range s.Claims {
			if unclaimed[c.HandlerKey]--; unclaimed[c.HandlerKey] == 0 {
				delete(unclaimed, c.HandlerKey)
			}
		}
		claims = append(claims, s.Claims...)
	}
	h.ended, h.plan.notified = true, true
	h.reservation.Deliver(claims, unclaimed)
}

// failed ends the reservation. Only an accept that failed at its commit may have been committed.
func (h *dispatch) failed(err error) {
	if h == nil {
		return
	}
	h.ended = true
	h.reservation.Abandon(store.MayBeCommitted(err))
}

// end makes sure that the reservation ends, also after a panic.
func (h *dispatch) end() {
	if h != nil && !h.ended {
		h.ended = true
		h.reservation.Abandon(true)
	}
}
