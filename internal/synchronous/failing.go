package synchronous

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gorm-inbox/inbox/internal/health"
)

// failing tracks the tasks that have failed and are not done.
type failing struct {
	mu    sync.Mutex
	tasks map[*task]health.FailingHandler
}

func (f *failing) set(t *task, now health.FailingHandler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, known := f.tasks[t]; known {
		now.Since = before.Since
	}
	f.tasks[t] = now
}

func (f *failing) forget(t *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tasks, t)
}

// Failing returns the handlers that fail at present, those that have failed for longest first.
func (r *Runner) Failing() []health.FailingHandler {
	r.failing.mu.Lock()
	defer r.failing.mu.Unlock()
	all := make([]health.FailingHandler, 0, len(r.failing.tasks))
	for _, f := range r.failing.tasks {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b health.FailingHandler) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition),
			cmp.Compare(a.HandlerKey, b.HandlerKey), cmp.Compare(a.MessageID, b.MessageID))
	})
	return all
}
