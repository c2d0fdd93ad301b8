// Package routine has helpers for goroutines: a Loop that can be stopped and started again, an Executor that reuses
// them, a sleep and a Lock that a context ends, a Signal, and Protect, which turns a panic into an error.
package routine

import (
	"context"
	"sync"
)

// Loop runs at most one goroutine at a time. The zero value is ready. It is safe for concurrent use.
type Loop struct {
	mu   sync.Mutex
	last *loopRun // nil if nothing was started, or its end was waited for
}

type loopRun struct {
	stop    context.CancelFunc
	stopped bool
	done    chan struct{} // closed when run has returned
}

// Start runs run in a goroutine until Stop, which ends its context. Starting twice does nothing. If an earlier run was
// stopped and has not ended yet, the new one begins after its end, never beside it.
func (l *Loop) Start(run func(ctx context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last
	if before != nil && !before.stopped {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &loopRun{stop: stop, done: make(chan struct{})}
	l.last = t
	go func() {
		defer close(t.done)
		if before != nil {
			<-before.done
		}
		if ctx.Err() == nil {
			run(ctx)
		}
	}()
}

// Stop ends the context of the running goroutine and waits for its end, at most until ctx ends;
// then it returns ctx's error. Until the goroutine has ended, every further Stop waits in the same
// way. After that, and before Start, Stop does nothing.
func (l *Loop) Stop(ctx context.Context) error {
	t := l.cancel()
	if t == nil {
		return nil
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		select {
		case <-t.done: // both were ready
		default:
			return ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == t { // no other run was started since
		l.last = nil
	}
	return nil
}

func (l *Loop) cancel() *loopRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		l.last.stop()
		l.last.stopped = true
	}
	return l.last
}
