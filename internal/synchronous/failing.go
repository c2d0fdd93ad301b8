package synchronous

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Failing is a handler that has failed with a message and is about to run again, while its partition waits
// (contract 7.6).
type Failing struct {
	Topic                 string
	Partition             int
	HandlerKey, MessageID string
	// Failures counts the charged attempts. Since is when the first of them ended, and Next when the next one is due.
	Failures    int
	Since, Next time.Time
	// Err is the last attempt's error. It may quote data.
	Err error
}

// Text describes the failure as of now, without the handler's key.
func (f Failing) Text(now time.Time) string {
	times := "once"
	if f.Failures > 1 {
		times = fmt.Sprintf("%d times", f.Failures)
	}
	next := "running again"
	if wait := f.Next.Sub(now).Round(time.Second); wait > 0 {
		next = "next in " + wait.String()
	}
	return fmt.Sprintf("failed %s with message %q, %s: %v", times, f.MessageID, next, f.Err)
}

// failing tracks the tasks that have failed and are not done.
type failing struct {
	mu    sync.Mutex
	tasks map[*task]Failing
}

func (f *failing) set(t *task, now Failing) {
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
func (r *Runner) Failing() []Failing {
	r.failing.mu.Lock()
	defer r.failing.mu.Unlock()
	all := make([]Failing, 0, len(r.failing.tasks))
	for _, f := range r.failing.tasks {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Failing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition),
			cmp.Compare(a.HandlerKey, b.HandlerKey), cmp.Compare(a.MessageID, b.MessageID))
	})
	return all
}
