package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/ops"
)

const (
	// causesFor is how long a slow grouping of failures is reused, as a multiple of the time it
	// took. A grouping is slow if it took longer than causesQuick. Groupings read thousands of
	// rows, and open pages request them every few seconds. Reuse limits them to a tenth of the
	// time, however many people watch.
	causesFor   = 10
	causesQuick = 100 * time.Millisecond
	// causesKept limits how many filters have a stored grouping.
	causesKept = 32
)

// causes stores the latest grouping of failures for each filter.
type causes struct {
	mu   sync.Mutex
	last map[string]grouping
	// forgotten counts calls of forget. A grouping that began before the latest call is not stored.
	forgotten int
	// turn is a one-slot semaphore, like that of samples: one request groups while others wait.
	turn chan struct{}
}

type grouping struct {
	found ops.Failures
	until time.Time
}

// failures groups the failures that match, or returns a stored grouping that is still valid. The
// name identifies the filter.
func (d *Dashboard) failures(ctx context.Context, name string, filter ops.Filter) (ops.Failures, error) {
	c := &d.causes
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ops.Failures{}, fmt.Errorf("wait for the failures of another request: %w", ctx.Err())
	}
	began := time.Now()
	c.mu.Lock()
	known, ok := c.last[name]
	forgotten := c.forgotten
	c.mu.Unlock()
	if ok && began.Before(known.until) {
		return known.found, nil
	}
	found, err := d.ops.Failures(ctx, filter)
	if err != nil {
		return ops.Failures{}, err
	}
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	if took < causesQuick || c.forgotten != forgotten {
		return found, nil
	}
	if len(c.last) >= causesKept {
		c.last = nil
	}
	if c.last == nil {
		c.last = map[string]grouping{}
	}
	c.last[name] = grouping{found, began.Add(took + causesFor*took)}
	return found, nil
}

// forget drops all stored groupings, so that the next page shows the action that was just done.
func (c *causes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.forgotten++
}
