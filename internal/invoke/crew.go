package invoke

import "sync"

// Crew runs functions concurrently on goroutines that it keeps for the next
// ones. A new goroutine begins with a small stack, which is copied to a larger
// one again and again until it holds what a handler needs; for handlers that
// take microseconds that costs as much as they do. A nil *Crew starts a new
// goroutine each time. It is safe for concurrent use.
type Crew struct {
	jobs      chan func() // unbuffered: taken only by a goroutine that waits
	dismissed chan struct{}
	once      sync.Once
}

// NewCrew makes a crew without goroutines. Whoever makes it must Dismiss it.
func NewCrew() *Crew {
	return &Crew{jobs: make(chan func()), dismissed: make(chan struct{})}
}

// Go runs f on a goroutine of its own and returns at once. It is allowed after
// Dismiss. f may call runtime.Goexit.
func (c *Crew) Go(f func()) {
	if c == nil {
		go f()
		return
	}
	select {
	case c.jobs <- f:
	default:
		go c.work(f)
	}
}

func (c *Crew) work(f func()) {
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

// Dismiss ends the goroutines that wait, and lets each other one end with what
// it runs. Dismissing twice does nothing.
func (c *Crew) Dismiss() { c.once.Do(func() { close(c.dismissed) }) }
