package processor

import (
	"sync"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// event is what other goroutines send to the owner of a pool. Exactly one field is set.
type event struct {
	finished *group
	overdue  *group
	returned *handler.Handler // whose call, given up as stuck, has returned
	claimed  *claimed
}

// reports is the queue of events that the owner has not handled yet. Senders never wait. The owner
// takes all events at once, because handlers that need microseconds finish by the dozen.
type reports struct {
	arrived routine.Signal // set while there may be events

	mu     sync.Mutex
	events []event
	spare  []event // the events last taken; their memory is reused
	closed bool
}

func newReports() reports { return reports{arrived: routine.NewSignal()} }

// add queues an event and reports whether it was taken. It is not taken after close.
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

// take returns the queued events in order. The slice is valid until the next take.
func (r *reports) take() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.spare)
	taken := r.events
	r.events, r.spare = r.spare[:0], taken
	return taken
}

// close returns the queued events and makes add refuse further ones.
func (r *reports) close() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	left := r.events
	r.events = nil
	return left
}
