package processor

import (
	"errors"

	"github.com/gorm-inbox/inbox/handler"
)

// group is what runs in one slot: one attempt, the messages of one call of a
// batch handler, or those that share a transaction (contract 5.11).
type group struct {
	handler *handler.Handler
	tasks   []*task
	overdue bool // of the pool's owner: it holds no slot any more (5.4)

	report func(error) // tells the circuit breaker that has let a batch run

	one [1]*task // room for attempts, which mostly is one
}

func newGroup(tasks []*task) *group {
	g := &group{handler: tasks[0].Handler, tasks: tasks}
	if len(tasks) == 1 { // of a queue, which must not be kept for it
		g.one[0] = tasks[0]
		g.tasks = g.one[:]
	}
	return g
}

// MayShare: what took workers with it, what an earlier call with others was cut
// short by, and, in a batch, what has failed, runs alone, so that it harms
// nobody but itself.
func (t *task) MayShare() bool {
	return t.policy.groupSize > 1 && !t.Alone && t.claim.AbandonedCount == 0 &&
		(t.Handler.BatchSize() == 1 || t.claim.ErrorCount == 0)
}

// again returns the attempts that are to run once more, ready for it.
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

// stuck: a call of the group was given up and has not returned yet, as far as
// the group knows.
func (g *group) stuck() bool {
	for _, t := range g.tasks {
		if errors.Is(t.Err, ErrStuck) {
			return true
		}
	}
	return false
}
