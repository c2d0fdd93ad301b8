// Package clock is the module's source of time, which tests can replace.
package clock

import (
	"sync/atomic"
	"time"
)

// Clock returns the time for due times, backoff and thresholds (contract 3.5). Implementations must
// be safe for concurrent use.
type Clock interface {
	Now() time.Time
}

// System is the machine's clock, in UTC.
type System struct{}

// Now returns the current time in UTC, truncated to the microseconds that databases keep.
func (System) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Offset is the clock of a machine that is wrong by a fixed time. It is for tests of workers whose
// clocks differ.
type Offset time.Duration

// Now returns the wrong time.
func (o Offset) Now() time.Time { return System{}.Now().Add(time.Duration(o)) }

// Jumping is the clock of a machine whose time is set while it runs. It is for tests. The zero value shows the right
// time.
type Jumping struct{ ahead atomic.Int64 }

// Set makes the clock show a time that is ahead of the right one, or behind it if ahead is negative.
func (j *Jumping) Set(ahead time.Duration) { j.ahead.Store(int64(ahead)) }

// Now returns the time that the machine shows.
func (j *Jumping) Now() time.Time { return Offset(j.ahead.Load()).Now() }

// IsTest reports whether a clock belongs to a test. A machine's clock differs from the database's by a bounded error; a
// test's clock shows the time that the test has set.
func IsTest(c Clock) bool {
	switch c.(type) {
	case System, Offset, *Jumping:
		return false
	}
	return true
}
