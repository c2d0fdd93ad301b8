// Package routine has what goroutines need: an owner that stops them and starts them again,
// a sleep that a context ends, a signal, a panic as an error.
package routine

import (
	"context"
	"sync"
)

// Loop is one goroutine at a time. The zero value is ready. It is safe for
// concurrent use.
type Loop struct {
	mu   sync.Mutex
	last *turn // nil when nothing has been started, or its end was waited for
}

type turn struct {
	stop    context.CancelFunc
	stopped bool
	done    chan struct{} // closed when it has ended
}

// Start runs run in a goroutine until Stop, which ends its context. Starting
// twice does nothing. While one that was stopped has not ended yet, run begins
// after that: never beside it.
func (l *Loop) Start(run func(ctx context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last
	if before != nil && !before.stopped {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &turn{stop: stop, done: make(chan struct{})}
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

// Stop ends the context of what runs and waits for its end, but no longer than
// ctx: then it returns ctx's error. Until that end every other Stop waits in the
// same way; after it, and before Start, Stop does nothing.
func (l *Loop) Stop(ctx context.Context) error {
	t := l.cancel()
	if t == nil {
		return nil
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		select {
		case <-t.done: // both came together
		default:
			return ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == t { // no other has been started meanwhile
		l.last = nil
	}
	return nil
}

func (l *Loop) cancel() *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		l.last.stop()
		l.last.stopped = true
	}
	return l.last
}
