package routine

import (
	"context"
	"time"
)

// Sleep waits for d and reports true, or false at once when ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Signal wakes who receives from it. Signals that nobody has received yet are one, and
// ringing never waits. Make it by NewSignal.
type Signal chan struct{}

// NewSignal returns a signal that nobody has rung.
func NewSignal() Signal { return make(Signal, 1) }

// Ring wakes the receiver, or the next one.
func (s Signal) Ring() {
	select {
	case s <- struct{}{}:
	default:
	}
}
