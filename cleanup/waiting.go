package cleanup

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// WaitingError says that cleanup deletes nothing, because a consumer of this
// process has not yet accepted what its partitions held when it got them: after
// a downtime longer than Retention these may be redeliveries of messages that
// cleanup would forget (contract 6.5).
type WaitingError struct {
	Channel string
	// Topic and Partition are the first that is behind; Topic is empty while
	// the consumer has no partitions assigned.
	Topic     string
	Partition int
	// Err is what keeps it behind, if that is known: the partition's halt, an
	// error of fetching, of the group or of accepting.
	Err error
}

// Error names channel, partition and cause.
func (e *WaitingError) Error() string {
	text := fmt.Sprintf("waiting for channel %q: it has no partitions assigned yet", e.Channel)
	if e.Topic != "" {
		text = fmt.Sprintf("waiting for channel %q: %s/%d has not passed the high watermark it had when it was assigned",
			e.Channel, e.Topic, e.Partition)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *WaitingError) Unwrap() error { return e.Err }

const (
	// recheck is when a run that was held is tried again, if its interval is
	// longer.
	recheck = time.Minute
	// heldIntervals is how many intervals runs may be held before health
	// degrades.
	heldIntervals = 6
)

// Health is how cleanup in the background does.
type Health struct {
	// Held is why runs delete nothing at present, a *WaitingError, and
	// HeldSince since when; nil and zero if they do.
	Held      error
	HeldSince time.Time
	// Overdue: held for six intervals.
	Overdue bool
	// Err is why the last run that was not held failed; nil if it did not.
	Err error
}

// state is what Health tells.
type state struct {
	mu      sync.Mutex
	held    error
	since   time.Time
	warned  bool
	lastErr error
}

func (s *state) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.since, s.warned, s.lastErr = nil, time.Time{}, false, nil
}

// Health tells how the runs since Start went; runs by hand do not count.
func (c *Cleaner) Health() Health {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return Health{Held: c.state.held, HeldSince: c.state.since, Overdue: c.overdue(), Err: c.state.lastErr}
}

func (c *Cleaner) overdue() bool {
	return c.state.held != nil && c.clock.Now().Sub(c.state.since) >= heldIntervals*c.opts.CleanupInterval
}

// held notes that a run had to wait, and says so when that begins and when it
// has lasted too long.
func (c *Cleaner) held(err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	first := c.state.held == nil
	c.state.held = err
	if first {
		c.state.since = c.clock.Now()
		c.log.Info("inbox: cleanup waits for consumers", zap.Error(err))
	}
	if !c.state.warned && c.overdue() {
		c.state.warned = true
		c.log.Warn("inbox: cleanup has waited for consumers for six intervals, nothing is deleted",
			zap.Time(telemetry.FieldSince, c.state.since), zap.Error(err))
	}
}

// going notes that a run was not held, and how it ended.
func (c *Cleaner) going(err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.held != nil {
		c.log.Info("inbox: cleanup no longer waits for consumers", zap.Time(telemetry.FieldSince, c.state.since))
	}
	c.state.held, c.state.since, c.state.warned, c.state.lastErr = nil, time.Time{}, false, err
}
