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

// announceEvery is the least time between two notifications of one process. PostgreSQL commits one
// transaction with a notification at a time, so one for each of thousands of messages a second
// would hold up them all.
const announceEvery = 3 * time.Millisecond

// announcer notifies the workers of other processes of new statuses (contract 4.7). The first
// notification is sent at once; handlers that are announced while it is sent, or shortly after it,
// share the next. Its goroutine ends when there is nothing left to announce.
type announcer struct {
	store   store.Announcer
	timeout time.Duration // of one notification
	log     *zap.Logger

	mu   sync.Mutex
	keys map[string]bool
	done <-chan struct{} // closed when the goroutine has ended; nil if none runs
}

// announce says that these handlers have new statuses, which are committed. It never blocks.
func (a *announcer) announce(keys ...string) {
	if len(keys) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range keys {
		a.keys[key] = true
	}
	if a.done == nil {
		a.done = routine.Go(a.send)
	}
}

func (a *announcer) send() {
	for keys := a.take(); len(keys) > 0; keys = a.take() {
		ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
		err := routine.Protect("notifying other workers", func() error { return a.store.Notify(ctx, keys...) })
		cancel()
		if err != nil {
			a.log.Warn("inbox: notifying other workers of new messages failed, they find them by polling", zap.Error(err))
		}
		routine.Sleep(context.Background(), announceEvery)
	}
}

// take returns what is to be announced. If it returns nothing, the goroutine must end.
func (a *announcer) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := slices.Sorted(maps.Keys(a.keys))
	clear(a.keys)
	if len(keys) == 0 {
		a.done = nil
	}
	return keys
}

// stopWait is how long a stop waits for the last notification.
const stopWait = time.Second

// wait returns when all is announced, at the latest after stopWait or when ctx ends.
func (a *announcer) wait(ctx context.Context) {
	a.mu.Lock()
	done := a.done
	a.mu.Unlock()
	if done == nil {
		return
	}
	end := time.NewTimer(stopWait)
	defer end.Stop()
	select {
	case <-done:
	case <-end.C:
	case <-ctx.Done():
	}
}
