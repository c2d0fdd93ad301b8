package processor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// wakeup collects reasons to claim. Signals coalesce and never block the sender.
type wakeup struct {
	signal routine.Signal

	mu   sync.Mutex
	keys map[string]bool
	all  bool
	due  time.Time
}

func newWakeup() *wakeup { return &wakeup{signal: routine.NewSignal(), keys: map[string]bool{}} }

// wake says that these handlers may have new due statuses; without keys, that any handler may.
func (w *wakeup) wake(keys ...string) {
	w.mu.Lock()
	w.all = w.all || len(keys) == 0
	for _, key := range keys {
		w.keys[key] = true
	}
	w.mu.Unlock()
	w.notify()
}

// at says that a status comes due at that time.
func (w *wakeup) at(due time.Time) {
	w.mu.Lock()
	w.due = earlier(w.due, due)
	w.mu.Unlock()
	w.signal.Notify()
}

// notify makes the loop run another round, without news about due statuses.
func (w *wakeup) notify() { w.signal.Notify() }

func (w *wakeup) take() (keys map[string]bool, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys, all = w.keys, w.all
	w.keys, w.all = map[string]bool{}, false
	return keys, all
}

func (w *wakeup) takeDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.due
	w.due = time.Time{}
	return due
}

// listen wakes the loop when other processes notify of new statuses, until ctx ends. Polling
// continues, so nothing depends on a notification. While listening fails, the log says so from time
// to time, and health shows it. Where no notification can arrive, the log says so once.
func (p *Processor) listen(ctx context.Context) {
	longest := 12 * p.opts.HeartbeatInterval
	retry := routine.Backoff{First: max(p.opts.HeartbeatInterval/50, time.Millisecond), Max: longest}
	for ctx.Err() == nil {
		began := time.Now()
		err := routine.Protect("listening", func() error { return p.listenOnce(ctx) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest { // it worked for a while
			retry.Reset()
		}
		pause := retry.Next()
		unable := errors.Is(err, store.ErrCannotListen) || errors.Is(err, store.ErrNoNotifications)
		if unable || errors.Is(err, store.ErrSharedSession) {
			p.polls.Do(func() {
				p.log.Info("inbox: notifications cannot arrive, what other processes accept is found by polling", zap.Error(err))
			})
			p.listening.End(nil)
			if unable {
				return // neither driver nor database changes
			}
			pause = longest
		} else {
			p.listening.Begin(nil, err, zap.Duration(telemetry.FieldTryingAgainAfter, pause))
		}
		routine.Sleep(ctx, pause)
	}
}

// listenOnce listens on one connection until that fails. It notices within two thirds of WorkerTimeout
// that a connection died silently.
func (p *Processor) listenOnce(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	l, err := p.store.Listen(connecting)
	cancel()
	if err != nil {
		return err
	}
	defer l.Close()
	p.listening.End(nil)
	// Notifications from before we listened are lost, so poll once. Poll after listening has begun, so that messages
	// that are committed after the poll are notified.
	p.wakeup.wake()
	for {
		keys, err := l.Next(ctx, p.opts.WorkerTimeout/3)
		if err != nil {
			return err
		}
		if len(keys) == 0 { // any handler may have new statuses
			p.wakeup.wake()
		} else {
			p.wakeKnown(keys)
		}
	}
}

// wakeKnown wakes the handlers that are registered here under any of the keys.
func (s *shared) wakeKnown(keys []string) {
	var known []string
	for _, key := range keys {
		if h, ok := s.registry.Lookup(key); ok {
			known = append(known, h.Key())
		}
	}
	if len(known) > 0 { // without keys wake would wake all
		s.wakeup.wake(known...)
	}
}

// listens reports whether this process notifies others, and is notified by them. SQLite has no notifications.
func (p *Processor) listens() bool { return p.opts.Listen && !p.store.SingleWriter() }

// notify notifies the workers of other processes that these handlers have new statuses.
func (p *Processor) notify(handlerKeys ...string) {
	if p.listens() {
		p.notifier.notify(handlerKeys...)
	}
}

// notifyEvery is the least time between two notifications of one process. PostgreSQL commits one transaction with a
// notification at a time, so one for each of thousands of messages a second would hold up them all.
const notifyEvery = 3 * time.Millisecond

// notifier notifies the workers of other processes of new statuses (contract 4.7). The first
// notification is sent at once; handlers that are added while it is sent, or shortly after it,
// share the next. Its goroutine ends when there is nothing left to send.
type notifier struct {
	*shared

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
			ctx, cancel := context.WithTimeout(ctx, n.opts.StatementTimeout)
			defer cancel()
			return n.store.Notify(ctx, keys...)
		})
		if err != nil {
			n.log.Warn("inbox: notifying other workers of new messages failed, they find them by polling", zap.Error(err))
		}
		routine.Sleep(ctx, notifyEvery)
	}
}

// take returns the handler keys to send. If it returns nothing, the goroutine must end. ctx has ended if wait gave it
// up; another goroutine may have begun since.
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

// wait returns when all is sent. After stopWait, or when ctx ends, it gives up unsent notifications.
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
