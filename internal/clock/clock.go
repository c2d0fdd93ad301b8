// Package clock is where the module gets its time from, so that tests own it.
package clock

import "time"

// Clock tells the time that due times, backoff and thresholds are judged by
// (contract 3.5). Implementations are safe for concurrent use.
type Clock interface {
	Now() time.Time
}

// System is the machine's clock, in UTC.
type System struct{}

// Now returns the current time in UTC, cut to the microseconds databases keep.
func (System) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Offset is the clock of a machine that is wrong by a fixed time, for tests of
// workers that disagree about it.
type Offset time.Duration

// Now returns the wrong time.
func (o Offset) Now() time.Time { return System{}.Now().Add(time.Duration(o)) }

// IsTest reports whether a clock is a test's own. That of a machine is the
// database's but for an error, which bounds what it says; a test's stands
// wherever the test has set it.
func IsTest(c Clock) bool {
	switch c.(type) {
	case System, Offset:
		return false
	}
	return true
}
