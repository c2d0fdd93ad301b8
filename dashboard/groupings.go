package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/ops"
)

const (
	// groupingReuse is how long a slow grouping of failures is reused, as a multiple of the time it
	// took. A grouping is slow if it took longer than quickGrouping. Groupings read thousands of
	// rows, and open pages request them every few seconds. Reuse limits them to a tenth of the
	// time, however many people watch.
	groupingReuse = 10
	quickGrouping = 100 * time.Millisecond
	// maxGroupings limits how many filters have a stored grouping.
	maxGroupings = 32
)

// groupingCache stores the latest grouping of failures for each filter.
type groupingCache struct {
	mu   sync.Mutex
	last map[string]grouping
	// forgotten counts calls of forget. A grouping that began before the latest call is not stored.
	forgotten int
	// sem is a one-slot semaphore, like that of samples: one request groups while others wait.
	sem chan struct{}
}

type grouping struct {
	found ops.Failures
	until time.Time
}

// failures groups the failures that match, or returns a stored grouping that is still valid. The
// name identifies the filter.
func (d *Dashboard) failures(ctx context.Context, name string, filter ops.Filter) (ops.Failures, error) {
	c := &d.groupings
	select {
	case c.sem <- struct{}{}:
		defer func() { <-c.sem }()
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
	if took < quickGrouping || c.forgotten != forgotten {
		return found, nil
	}
	if len(c.last) >= maxGroupings {
		c.last = nil
	}
	if c.last == nil {
		c.last = map[string]grouping{}
	}
	c.last[name] = grouping{found, began.Add(took + groupingReuse*took)}
	return found, nil
}

// forget drops all stored groupings, so that the next page shows the action that was just done.
func (c *groupingCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.forgotten++
}
