package attempt

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Running tracks the calls of handlers that have not returned, including those that were given up as stuck (contract
// 5.4). The processor and all synchronous channels of an inbox share one. It is safe for concurrent use. A nil Running
// tracks nothing.
type Running struct {
	now func() time.Time

	mu    sync.Mutex
	last  uint64                 // the number of the latest call
	calls map[uint64]RunningCall // by number, so that a call costs no allocation
}

// RunningCall is a call of a handler that has not returned.
type RunningCall struct {
	Handler *handler.Handler
	Since   time.Time // when it began, by the inbox's clock

	deliveries []handler.Delivery // read-only
}

// NewRunning returns a Running without calls; now is the inbox's clock.
func NewRunning(now func() time.Time) *Running {
	return &Running{now: now, calls: map[uint64]RunningCall{}}
}

// MessageIDs returns the IDs of the messages that the call handles: several for a batch handler.
func (c RunningCall) MessageIDs() []string {
	ids := make([]string, len(c.deliveries))
	for i, d := range c.deliveries {
		ids[i] = d.ID
	}
	return ids
}

// begin records a call and returns its number. The call is running until end is called with it.
func (r *Running) begin(h *handler.Handler, deliveries []handler.Delivery) uint64 {
	if r == nil {
		return 0
	}
	c := RunningCall{Handler: h, Since: r.now(), deliveries: deliveries}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.calls[r.last] = c
	return r.last
}

func (r *Running) end(call uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, call)
}

// Calls returns the running calls, the longest first.
func (r *Running) Calls() []RunningCall {
	r.mu.Lock()
	calls := slices.Collect(maps.Values(r.calls))
	r.mu.Unlock()
	slices.SortFunc(calls, func(a, b RunningCall) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Handler.Key(), b.Handler.Key()))
	})
	return calls
}
