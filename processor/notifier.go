package processor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// notifyEvery is the least time between two notifications of one process. PostgreSQL commits one transaction with a
// notification at a time, so one for each of thousands of messages a second would hold up them all.
const notifyEvery = 3 * time.Millisecond

// notifier notifies the workers of other processes of new statuses (contract 4.7). The first
// notification is sent at once; handlers that are added while it is sent, or shortly after it,
// share the next. Its goroutine ends when there is nothing left to send.
type notifier struct {
	store   store.Notifier
	timeout time.Duration // of one notification
	log     *zap.Logger

	mu     sync.Mutex
	keys   map[string]bool
	done   <-chan struct{} // closed when the goroutine has ended; nil if none runs
	cancel context.CancelFunc
}

// notify says that these handlers have new statuses, which are committed. It never blocks.
func (n *notifier) notify(keys ...string) {
	if len(keys) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		n.keys[key] = true
	}
	if n.done == nil {
		var ctx context.Context
		ctx, n.cancel = context.WithCancel(context.Background())
		n.done = routine.Go(func() { n.send(ctx) })
	}
}

func (n *notifier) send(ctx context.Context) {
	for keys := n.take(ctx); len(keys) > 0; keys = n.take(ctx) {
		err := routine.Protect("notifying other workers", func() error {
			ctx, cancel := context.WithTimeout(ctx, n.timeout)
			defer cancel()
			return n.store.Notify(ctx, keys...)
		})
		if err != nil {
			n.log.Warn("inbox: notifying other workers of new messages failed, they find them by polling", zap.Error(err))
		}
		routine.Sleep(ctx, notifyEvery)
	}
}

// take returns what is to be sent. If it returns nothing, the goroutine must end. ctx has ended if
// wait gave it up; another goroutine may have begun since.
func (n *notifier) take(ctx context.Context) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	keys := slices.Sorted(maps.Keys(n.keys))
	clear(n.keys)
	if len(keys) == 0 {
		n.cancel()
		n.done = nil
	}
	return keys
}

// stopWait is how long a stop waits for the last notification.
const stopWait = time.Second

// wait returns when all is sent. After stopWait, or when ctx ends, it gives up what is not sent.
func (n *notifier) wait(ctx context.Context) {
	n.mu.Lock()
	done := n.done
	n.mu.Unlock()
	if done == nil {
		return
	}
	end := time.NewTimer(stopWait)
	defer end.Stop()
	select {
	case <-done:
		return
	case <-end.C:
	case <-ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == done {
		clear(n.keys)
		n.cancel()
		n.done = nil
	}
}
