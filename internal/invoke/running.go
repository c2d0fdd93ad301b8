package invoke

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Running knows the calls of handlers that have not returned, those included that
// were given up as stuck (contract 5.4). The processor and all synchronous channels
// of an inbox share one. It is safe for concurrent use, and nil knows none.
type Running struct {
	now func() time.Time

	mu    sync.Mutex
	calls map[*RunningCall]struct{}
}

// RunningCall is a call of a handler that has not returned.
type RunningCall struct {
	Handler *handler.Handler
	Since   time.Time // when it began, by the inbox's clock

	deliveries []handler.Delivery // nobody writes to them
}

// NewRunning makes a Running that knows none yet; now is the inbox's clock.
func NewRunning(now func() time.Time) *Running {
	return &Running{now: now, calls: map[*RunningCall]struct{}{}}
}

// MessageIDs are of the messages that the call handles: several of a batch handler.
func (c *RunningCall) MessageIDs() []string {
	ids := make([]string, len(c.deliveries))
	for i, d := range c.deliveries {
		ids[i] = d.ID
	}
	return ids
}

// begin notes a call. It is running until end is called.
func (r *Running) begin(h *handler.Handler, deliveries []handler.Delivery) *RunningCall {
	if r == nil {
		return nil
	}
	c := &RunningCall{Handler: h, Since: r.now(), deliveries: deliveries}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[c] = struct{}{}
	return c
}

func (r *Running) end(c *RunningCall) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, c)
}

// Calls returns the calls that run, the longest first.
func (r *Running) Calls() []*RunningCall {
	r.mu.Lock()
	calls := make([]*RunningCall, 0, len(r.calls))
	for c := range r.calls {
		calls = append(calls, c)
	}
	r.mu.Unlock()
	slices.SortFunc(calls, func(a, b *RunningCall) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Handler.Key(), b.Handler.Key()))
	})
	return calls
}
