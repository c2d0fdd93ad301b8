package processor

import (
	"sync"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// event is what reaches the owner of a pool from other goroutines; one field is set.
type event struct {
	finished *group
	overdue  *group
	returned *handler.Handler // a call that was given up as stuck
	claimed  *claimed
}

// reports are the events that the owner has not handled yet. Who brings one does
// not wait until they are taken, and the owner takes all at once: handlers that
// need microseconds finish by the dozen.
type reports struct {
	arrived routine.Signal // holds one token while there may be some

	mu     sync.Mutex
	events []event
	spare  []event // the loop's last ones: room for the next
	closed bool
}

func newReports() reports { return reports{arrived: routine.NewSignal()} }

// add reports whether the event was taken; it is not once the loop is gone.
func (r *reports) add(e event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.events = append(r.events, e)
	if len(r.events) == 1 {
		r.arrived.Notify()
	}
	return true
}

// take returns what has arrived, in order, until the next take.
func (r *reports) take() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.spare)
	taken := r.events
	r.events, r.spare = r.spare[:0], taken
	return taken
}

// close returns what was not taken; no more is.
func (r *reports) close() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	left := r.events
	r.events = nil
	return left
}
