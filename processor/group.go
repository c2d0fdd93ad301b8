package processor

import (
	"errors"

	"github.com/gorm-inbox/inbox/handler"
)

// group is what runs in one slot: one attempt, the messages of one call of a
// batch handler, or those that share a transaction (contract 5.11).
type group struct {
	handler  *handler.Handler
	attempts []*attempt
	overdue  bool // owned by the loop: it holds no slot any more (5.4)

	report func(error) // tells the circuit breaker that has let a batch run

	one [1]*attempt // room for attempts, which mostly is one
}

// mayShare: what took workers with it, what an earlier call with others was cut
// short by, and, in a batch, what has failed, runs alone, so that it harms
// nobody but itself.
func (a *attempt) mayShare() bool {
	return a.policy.share > 1 && !a.alone && a.claim.AbandonedCount == 0 && (a.handler.BatchSize() == 1 || a.claim.ErrorCount == 0)
}

// takeGroup takes the first attempt off a queue, with up to limit-1 others that
// may share with it, and returns what is left, in order.
func takeGroup(queue []*attempt, limit int) (*group, []*attempt) {
	first := queue[0]
	g := &group{handler: first.handler, one: [1]*attempt{first}}
	g.attempts = g.one[:]
	if !first.mayShare() || limit <= 1 {
		return g, queue[1:]
	}
	rest := make([]*attempt, 0, len(queue))
	for _, a := range queue[1:] {
		if len(g.attempts) < limit && a.mayShare() {
			g.attempts = append(g.attempts, a)
		} else {
			rest = append(rest, a)
		}
	}
	return g, rest
}

// again returns the attempts that are to run once more, ready for it.
func (g *group) again() []*attempt {
	var again []*attempt
	for _, a := range g.attempts {
		if a.again {
			again = append(again, a)
			a.again, a.err, a.cause, a.duration = false, nil, nil, 0
		}
	}
	return again
}

// stuck: a call of the group was given up and has not returned yet, as far as
// the group knows.
func (g *group) stuck() bool {
	for _, a := range g.attempts {
		if errors.Is(a.err, ErrStuck) {
			return true
		}
	}
	return false
}

// repeat marks an attempt to run once more at once, uncharged: others were why
// it did not come to its end.
func (a *attempt) repeat(alone bool) {
	a.again, a.alone = true, a.alone || alone
	a.err, a.stored, a.fenced = nil, false, false
	if a.report != nil {
		a.report(errNeutral)
		a.report = nil
	}
}
