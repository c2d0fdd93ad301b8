package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/ops"
)

const (
	// causesFor is how many times as long as a grouping of failures took it is
	// shown again, if it took longer than causesQuick: they look at thousands of
	// rows, and pages that are looked at ask every few seconds. So all who look
	// take a tenth of the time at most.
	causesFor   = 10
	causesQuick = 100 * time.Millisecond
	// causesKept bounds the filters that are remembered.
	causesKept = 32
)

// causes are the last groupings of failures, by filter.
type causes struct {
	mu   sync.Mutex
	last map[string]grouping
	// forgotten counts calls of forget: what began before one is not kept.
	forgotten int
	// turn is as of samples.
	turn chan struct{}
}

type grouping struct {
	found ops.Failures
	until time.Time
}

// failures groups what matches, or says what was found just now. The name stands
// for the filter.
func (d *Dashboard) failures(ctx context.Context, name string, filter ops.Filter) (ops.Failures, error) {
	c := &d.causes
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ops.Failures{}, fmt.Errorf("wait for failures that somebody else asked for: %w", ctx.Err())
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

// forget has the next page group anew, so that it shows what was just done.
func (c *causes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	c.forgotten++
}
