package processor

import "sync"

// executor runs functions on goroutines that it reuses. A new goroutine starts with a small stack, which
// grows by copying until it holds what an attempt needs; for handlers that take microseconds that
// costs as much as the handler. Handlers are not called on these goroutines but on new ones (see
// attempt.call), because what a handler leaves behind, such as a locked thread or labels, must not
// affect others.
type executor struct {
	mu     sync.Mutex
	idle   []chan func() // job channels of the waiting goroutines, each with room for one job
	closed bool
}

// newExecutor returns an executor without goroutines. The caller must close it.
func newExecutor() *executor { return &executor{} }

// run runs f on another goroutine and returns at once. It may be called after close.
func (c *executor) run(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		c.idle[last] <- f
		c.idle = c.idle[:last]
		return
	}
	go c.work(make(chan func(), 1), f)
}

func (c *executor) work(jobs chan func(), f func()) {
	for f != nil {
		f()
		f = nil // let the garbage collector free what f refers to
		if !c.wait(jobs) {
			return
		}
		f = <-jobs
	}
}

// wait offers the goroutine for the next job. It returns false after close.
func (c *executor) wait(jobs chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.idle = append(c.idle, jobs)
	}
	return !c.closed
}

// close ends the waiting goroutines; each busy one ends after its job. It may be called twice.
func (c *executor) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, jobs := range c.idle {
		close(jobs)
	}
	c.idle = nil
}
