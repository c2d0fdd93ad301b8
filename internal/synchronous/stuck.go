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

// stuck knows the calls that ignore their cancelled context (contract 5.4).
//
// A call is given up when its grace is over or when the partition has to be
// let go (a rebalance, a stop), and may still be running then. The partition
// can come back to this very process at once, with the same record: the next
// call for it waits for the old one until grace has passed since it was
// overdue, so that no record runs beside itself sooner than the inbox would let it.
// With limit such calls no other begins until one returns: each of them holds a
// goroutine, and perhaps a connection.
type stuck struct {
	limit int
	grace time.Duration

	mu      sync.Mutex
	left    map[*call]bool // given up, still running
	ignored map[string]int // by handler key: calls that are overdue, also those given up
}

// call is one call of a handler.
type call struct {
	of   *stuck
	at   partition
	key  string
	done chan struct{} // closed when it returns after it was given up

	late  bool      // it was overdue
	until time.Time // given up: how long it is waited for
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

// ended notes the end of the attempt; left behind, the call goes on.
func (c *call) ended(leftBehind bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	select {
	case <-c.done:
		return // it returned right after it was given up
	default:
	}
	if leftBehind {
		c.of.left[c] = true
	} else if c.late {
		c.of.forget(c)
	}
}

// returned notes the end of a call that was given up.
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

// await returns when a call for the partition may begin, or false when stopping
// is closed or ctx has ended while it waited.
func (s *stuck) await(ctx context.Context, stopping <-chan struct{}, at partition) bool {
	for {
		c, patience := s.blocking(at)
		if c == nil {
			return true
		}
		if !c.await(ctx, stopping, patience) {
			return false
		}
	}
}

// await waits for the call to return, but no longer than patience.
func (c *call) await(ctx context.Context, stopping <-chan struct{}, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-stopping:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

func (s *stuck) blocks(at partition) bool {
	c, _ := s.blocking(at)
	return c != nil
}

// blocking returns a call to wait for, and how long at most; nil if none is.
func (s *stuck) blocking(at partition) (*call, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.left {
		if len(s.left) >= s.limit {
			return c, time.Second // then whoever is left is looked at again
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
