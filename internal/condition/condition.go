// Package condition logs lasting failures: once when one begins, now and then while it lasts, and once when it has
// recovered (contract 5.15, 7.8). One that comes and goes is logged sparsely.
package condition

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Reminder is how often a condition that lasts is logged again.
const Reminder = 5 * time.Minute

// Debounce is how long after its last line a condition that begins again is not logged: an overloaded database answers
// one call and misses the next. If it is still met after Debounce, it is logged then.
const Debounce = 10 * time.Second

// Condition is something that can fail for a while, with one or several sources: partitions, tasks, or nil for the only
// one. It is logged when it begins, every Reminder while it is met, and when the last source is well again. If it
// begins again within Debounce, neither that nor its end is logged. It is safe for concurrent use.
type Condition struct {
	log     *zap.Logger
	clock   clock.Clock
	level   zapcore.Level
	name    string
	meaning string

	mu      sync.Mutex
	sources map[any]struct{}
	lasts   bool
	logs    bool  // it was logged since it began
	err     error // the last
	since   time.Time
	logged  time.Time // when its last line was
	met     int       // since it began
	over    time.Time // when it ended last
}

// New returns a Condition that has not begun. Name is what fails, also as a field of the log; meaning says what follows
// from it.
func New(log *zap.Logger, clock clock.Clock, level zapcore.Level, name, meaning string) *Condition {
	return &Condition{log: log.With(zap.String(telemetry.FieldCondition, name)), clock: clock, level: level, name: name,
		meaning: meaning, sources: map[any]struct{}{}}
}

// Name returns what fails.
func (c *Condition) Name() string { return c.name }

// Begin notes that a source meets the condition. It logs the condition once, and again each Reminder.
func (c *Condition) Begin(source any, err error, fields ...zap.Field) {
	err = brief.Error(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[source] = struct{}{}
	now := c.now()
	if !c.lasts {
		c.since, c.met, c.logs = now, 0, false
	}
	c.lasts, c.err = true, err
	c.met++
	ago := now.Sub(c.logged)
	switch {
	case !c.logs && ago >= 0 && ago < Debounce: // a clock that was set back hides nothing
	case !c.logs:
		c.logs, c.logged = true, now
		c.log.Log(c.level, "inbox: "+c.name+" failing: "+c.meaning, append(fields, zap.Error(err))...)
	case ago >= Reminder:
		c.logged = now
		c.log.Log(c.level, "inbox: "+c.name+" still failing: "+c.meaning, append(fields,
			zap.Duration(telemetry.FieldAfter, now.Sub(c.since)), zap.Int(telemetry.FieldTimes, c.met), zap.Error(err))...)
	}
}

// End notes that a source is well again.
func (c *Condition) End(source any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sources, source)
	c.leave("recovered")
}

// Forget drops a source that is no more, which does not mean that all is well.
func (c *Condition) Forget(source any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sources, source)
}

// Clear forgets a condition whose sources are all gone. The next source reports its own state.
func (c *Condition) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave("no longer watched by this process")
}

// leave ends the condition once no source has it. The lock is held.
func (c *Condition) leave(how string) {
	if !c.lasts || len(c.sources) > 0 {
		return
	}
	c.over = c.now()
	if c.logs {
		c.logged = c.over
		c.log.Info("inbox: "+c.name+" "+how, zap.Duration(telemetry.FieldAfter, c.over.Sub(c.since)),
			zap.Int(telemetry.FieldTimes, c.met))
	}
	c.lasts, c.err, c.since = false, nil, time.Time{}
}

// now is the application's clock, whose panic must not end the caller.
func (c *Condition) now() (t time.Time) {
	defer func() {
		if recover() != nil {
			t = time.Now()
		}
	}()
	return c.clock.Now()
}

// Current returns the last error and since when the condition lasts; zero and nil if it does not.
func (c *Condition) Current() (since time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.err
}

// Until returns the current time while the condition lasts, and else when it ended last; zero if it never began.
func (c *Condition) Until() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lasts {
		return c.now()
	}
	return c.over
}
