package clock

import (
	"sync"
	"time"
)

// Database is the clock by which a processor writes due times and judges what is due. On a server it is the
// database's clock, so that all workers agree on when a retry is due, even if their machines do not. Between two
// readings it goes on by this process's monotonic clock, which setting the machine's clock does not move. The injected
// clock counts on SQLite, which has no clock, before the first reading, and if it is a test's.
type Database struct {
	Injected Clock
	Follows  bool // the database's clock; otherwise readings are ignored

	mu   sync.Mutex
	read time.Time // what the database's clock showed; zero before the first reading
	at   time.Time // when it showed that, monotonic
}

// NewDatabase returns a clock that follows the database's, unless a test's is injected.
func NewDatabase(injected Clock) *Database {
	return &Database{Injected: injected, Follows: !IsTest(injected)}
}

// Now returns the time. Due times are written and compared in the microseconds that databases keep.
func (c *Database) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.IsZero() {
		return c.Injected.Now()
	}
	return c.now()
}

func (c *Database) now() time.Time {
	return c.read.Add(time.Since(c.at)).Truncate(time.Microsecond)
}

// Follow takes a reading of the database's clock that was requested at a time of the monotonic clock. It counts from
// its arrival: the clock may lag by the response's time, but is never ahead. While the present time may be right, it
// stays, so that a slow response does not set the clock back.
func (c *Database) Follow(read, asked time.Time) {
	if !c.Follows || read.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); !c.read.IsZero() && !now.Before(read) && !now.After(read.Add(time.Since(asked))) {
		return
	}
	c.read, c.at = read, time.Now()
}
