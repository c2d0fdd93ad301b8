package synchronous

import (
	"context"
	"maps"
	"sync"
	"time"
)

type partition struct {
	topic string
	id    int
}

// stuck tracks the calls that ignore their cancelled context.
//
// A call is given up when its grace is over, or when the partition must be released (a rebalance, a stop). It may still
// be running then, and the partition can come back to this same process at once, with the same record. The next call
// for the partition waits for the old one until grace has passed since the old call became overdue. So no record runs
// beside itself sooner than the inbox would allow.
//
// Once there are limit such calls, no other call begins until one returns: each of them holds a goroutine, and perhaps
// a connection.
type stuck struct {
	limit int
	grace time.Duration

	mu      sync.Mutex
	left    map[*call]bool // calls that were given up and still run
	ignored map[string]int // by handler key: calls that are overdue, including those given up
}

// call is one call of a handler.
type call struct {
	of   *stuck
	at   partition
	key  string
	done chan struct{} // closed when the call returns after it was given up

	late  bool      // whether it was overdue
	until time.Time // after it was given up: until when others wait for it
}

func newStuck(limit int, grace time.Duration) *stuck {
	return &stuck{limit: limit, grace: grace, left: map[*call]bool{}, ignored: map[string]int{}}
}

func (s *stuck) begin(at partition, key string) *call {
	return &call{of: s, at: at, key: key, done: make(chan struct{})}
}

func (c *call) overdue() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.late, c.until = true, time.Now().Add(c.of.grace)
	c.of.ignored[c.key]++
}

// ended records the end of the attempt. leftBehind says that the call itself goes on.
func (c *call) ended(leftBehind bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	select {
	case <-c.done:
		return // the call returned right after it was given up
	default:
	}
	if leftBehind {
		c.of.left[c] = true
	} else if c.late {
		c.of.forget(c)
	}
}

// returned records the end of a call that was given up.
func (c *call) returned() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	close(c.done)
	c.of.forget(c)
}

func (s *stuck) forget(c *call) {
	delete(s.left, c)
	if s.ignored[c.key]--; s.ignored[c.key] <= 0 {
		delete(s.ignored, c.key)
	}
}

// await waits until a call for the partition may begin. It returns false if stopping is closed or ctx ends first.
func (s *stuck) await(ctx context.Context, stopping <-chan struct{}, at partition) bool {
	for {
		c, patience := s.blocking(at)
		if c == nil {
			return true
		}
		select {
		case <-c.done:
		case <-time.After(patience):
		case <-stopping:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (s *stuck) blocks(at partition) bool {
	c, _ := s.blocking(at)
	return c != nil
}

// blocking returns a call to wait for and the longest time to wait; nil if there is none.
func (s *stuck) blocking(at partition) (*call, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.left {
		if len(s.left) >= s.limit {
			return c, time.Second // then check again which calls are left
		}
		if patience := time.Until(c.until); c.at == at && patience > 0 {
			return c, patience
		}
	}
	return nil, 0
}

func (s *stuck) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ignored)
}
