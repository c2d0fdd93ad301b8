package routine

import (
	"context"
	"time"
)

// Sleep waits for d and returns true. It returns false as soon as ctx ends, and whenever ctx has ended.
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

// Signal wakes its receiver. Notifications that have not been received yet coalesce into one, and
// Notify never waits. Make it with NewSignal.
type Signal chan struct{}

// NewSignal returns a signal without a notification.
func NewSignal() Signal { return make(Signal, 1) }

// Notify wakes the present receiver or, if there is none, the next one.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Lock is a mutex. Acquire gives up when its context ends. Make it with NewLock.
type Lock chan struct{}

// NewLock returns a lock that no one holds.
func NewLock() Lock { return make(Lock, 1) }

// Acquire waits for the lock. It acquires a free lock even if ctx has ended.
func (l Lock) Acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release frees the lock. It panics if no one holds it.
func (l Lock) Release() {
	select {
	case <-l:
	default:
		panic("routine: release of a free lock")
	}
}
