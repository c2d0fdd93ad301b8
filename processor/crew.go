package processor

import "sync"

// crew runs attempts on goroutines that it keeps for the next ones. A new
// goroutine begins with a small stack, which is copied to a larger one again and
// again until it holds what an attempt needs; for handlers that take microseconds
// that costs as much as they do. Handlers themselves are called on goroutines of
// their own (attempt.call): what they leave behind on one, a locked thread or
// labels, must not reach others.
type crew struct {
	mu        sync.Mutex
	idle      []chan func() // of the goroutines that wait, each with room for its next job
	dismissed bool
}

// newCrew makes a crew without goroutines. Whoever makes it must dismiss it.
func newCrew() *crew { return &crew{} }

// run runs f on a goroutine of its own and returns at once. It is allowed after
// dismiss.
func (c *crew) run(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		c.idle[last] <- f
		c.idle = c.idle[:last]
		return
	}
	go c.work(make(chan func(), 1), f)
}

func (c *crew) work(jobs chan func(), f func()) {
	for f != nil {
		f()
		f = nil // what it holds is not kept while it waits
		if !c.wait(jobs) {
			return
		}
		f = <-jobs
	}
}

// wait offers a goroutine for the next job; false means that there is none.
func (c *crew) wait(jobs chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dismissed {
		c.idle = append(c.idle, jobs)
	}
	return !c.dismissed
}

// dismiss ends the goroutines that wait, and lets each other one end with what
// it runs. Dismissing twice does nothing.
func (c *crew) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dismissed = true
	for _, jobs := range c.idle {
		close(jobs)
	}
	c.idle = nil
}
