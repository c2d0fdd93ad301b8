package routine

import "sync"

// Executor runs functions on goroutines that it reuses. A new goroutine starts with a small stack, which grows by
// copying: for handlers that take microseconds that costs as much as the handler. Do not call handlers on these
// goroutines: state that a handler leaves on its goroutine, such as a locked thread or labels, must not affect others.
// The zero value is ready. It is safe for concurrent use, and must be closed.
type Executor struct {
	mu     sync.Mutex
	idle   []chan func() // job channels of the waiting goroutines, each with room for one job
	closed bool
}

// Run runs f on another goroutine and returns at once. It may be called after Close.
func (e *Executor) Run(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last := len(e.idle) - 1; last >= 0 {
		e.idle[last] <- f
		e.idle = e.idle[:last]
		return
	}
	go e.work(make(chan func(), 1), f)
}

func (e *Executor) work(jobs chan func(), f func()) {
	for f != nil {
		f()
		f = nil // let the garbage collector free what f refers to
		if !e.wait(jobs) {
			return
		}
		f = <-jobs
	}
}

// wait offers the goroutine for the next job. It returns false after Close.
func (e *Executor) wait(jobs chan func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.idle = append(e.idle, jobs)
	}
	return !e.closed
}

// Close ends the waiting goroutines; each busy one ends after its job. It may be called twice.
func (e *Executor) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, jobs := range e.idle {
		close(jobs)
	}
	e.idle = nil
}
