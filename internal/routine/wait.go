package routine

import (
	"context"
	"time"
)

// Sleep waits for d and reports true, or false at once when ctx ends. It is false whenever
// ctx has ended.
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

// Signal wakes its receiver. Notifications that have not been received yet are one, and
// Notify never waits. Make it by NewSignal.
type Signal chan struct{}

// NewSignal returns a signal without a notification.
func NewSignal() Signal { return make(Signal, 1) }

// Notify wakes the receiver, or the next one.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
