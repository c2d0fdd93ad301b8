package processor

import (
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
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
	if w.due.IsZero() || due.Before(w.due) {
		w.due = due
	}
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
