package processor

import (
	"errors"

	"github.com/gorm-inbox/inbox/handler"
)

// group is what runs in one slot: a single attempt, the messages of one batch call, or the messages
// that share a transaction.
type group struct {
	handler *handler.Handler
	tasks   []*task
	overdue bool // set by the pool's owner: it no longer holds a slot

	report func(error) // reports to the circuit breaker that admitted a batch

	one [1]*task // backing array of tasks if there is one
}

func newGroup(tasks []*task) *group {
	g := &group{handler: tasks[0].Handler, tasks: tasks}
	if len(tasks) == 1 { // copy it, so that the queue's array is not kept
		g.one[0] = tasks[0]
		g.tasks = g.one[:]
	}
	return g
}

// MayGroup reports whether the task may run together with others. A task that could harm others
// runs alone: one with which workers have vanished, one that cut an earlier call with others short
// and, for a batch handler, one that has failed.
func (t *task) MayGroup() bool {
	return t.policy.groupSize > 1 && !t.Alone && t.claim.AbandonedCount == 0 &&
		(t.Handler.BatchSize() == 1 || t.claim.ErrorCount == 0)
}

// again returns the tasks that must run once more, reset for it.
func (g *group) again() []*task {
	var again []*task
	for _, t := range g.tasks {
		if t.Again {
			again = append(again, t)
			t.Reset()
		}
	}
	return again
}

// stuck reports whether a call of the group was given up and has not returned, as far as the group
// knows.
func (g *group) stuck() bool {
	for _, t := range g.tasks {
		if errors.Is(t.Err, ErrStuck) {
			return true
		}
	}
	return false
}
