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
