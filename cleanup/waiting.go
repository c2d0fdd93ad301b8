package cleanup

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// WaitingError says that cleanup deletes nothing, because a consumer of this process has not yet
// accepted what its partitions held when they were assigned. After a downtime longer than Retention
// these records may be redeliveries of messages that cleanup would forget (contract 6.5).
type WaitingError struct {
	Channel string
	// Topic and Partition are the first partition that is behind. Topic is empty while the consumer
	// has no partitions assigned.
	Topic     string
	Partition int
	// Err is why the partition is behind, if known: it is halted, or fetching, the group or
	// accepting failed.
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
	// recheck is how soon a run that had to wait is tried again, if CleanupInterval is longer.
	recheck = time.Minute
	// heldIntervals is after how many intervals of waiting health degrades.
	heldIntervals = 6
)

// Health is the state of cleanup in the background.
type Health struct {
	// Held is why runs delete nothing at present, a *WaitingError, and HeldSince is since when.
	// They are nil and zero if runs do not wait.
	Held      error
	HeldSince time.Time
	// Overdue reports that runs have waited for six intervals.
	Overdue bool
	// Err is the error of the last run that did not have to wait; nil if it succeeded.
	Err error
}

// state is what Health returns.
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

// Health returns the state of the runs since Start. Runs by hand do not count.
func (c *Cleaner) Health() Health {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return Health{Held: c.state.held, HeldSince: c.state.since, Overdue: c.overdue(), Err: c.state.lastErr}
}

func (c *Cleaner) overdue() bool {
	return c.state.held != nil && c.clock.Now().Sub(c.state.since) >= heldIntervals*c.opts.CleanupInterval
}

// held records that a run had to wait. It logs when the waiting begins and when it has lasted too
// long.
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

// going records that a run did not have to wait, and how it ended.
func (c *Cleaner) going(err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.held != nil {
		c.log.Info("inbox: cleanup no longer waits for consumers", zap.Time(telemetry.FieldSince, c.state.since))
	}
	c.state.held, c.state.since, c.state.warned, c.state.lastErr = nil, time.Time{}, false, err
}
