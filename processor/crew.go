package processor

import "sync"

// crew runs attempts on goroutines that it keeps for the next ones. A new
// goroutine begins with a small stack, which is copied to a larger one again and
// again until it holds what an attempt needs; for handlers that take microseconds
// that costs as much as they do. Handlers themselves are called on goroutines of
// their own (invoke.Call): what they leave behind on one, a locked thread or
// labels, must not reach others.
type crew struct {
	jobs      chan func() // unbuffered: taken only by a goroutine that waits
	dismissed chan struct{}
	once      sync.Once
}

// newCrew makes a crew without goroutines. Whoever makes it must dismiss it.
func newCrew() *crew { return &crew{jobs: make(chan func()), dismissed: make(chan struct{})} }

// run runs f on a goroutine of its own and returns at once. It is allowed after
// dismiss.
func (c *crew) run(f func()) {
	select {
	case c.jobs <- f:
	default:
		go c.work(f)
	}
}

func (c *crew) work(f func()) {
	for {
		f()
		select {
		case <-c.dismissed:
			return
		default:
		}
		select {
		case f = <-c.jobs:
		case <-c.dismissed:
			return
		}
	}
}

// dismiss ends the goroutines that wait, and lets each other one end with what
// it runs. Dismissing twice does nothing.
func (c *crew) dismiss() { c.once.Do(func() { close(c.dismissed) }) }
