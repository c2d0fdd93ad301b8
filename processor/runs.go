package processor

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// maxRunBytes bounds the messages that a group gets by runs.
const maxRunBytes = 1 << 20

// errAfterFailure releases a message of a run that follows one which has not completed, even if the handler says that
// it is done.
var errAfterFailure = attempt.NewInterruption("a message before it in its lane did not complete")

// extend claims the messages that follow a group's in their lanes, so that the group's call handles them, too. It runs
// in the group's goroutine right before the call. Until then the database keeps the messages for any worker. If it
// fails, the call handles what the group has.
func (l *loop) extend(g *group) {
	policy := l.p.policies[g.handler]
	switch {
	case policy.runSize == 0, len(g.handler.LegacyKeys()) > 0: // a claim has to look for siblings
		return
	case g.handler.RateKey() != nil: // each message counts
		return
	case policy.breaker != nil && policy.breaker.state() != scheduler.Closed: // a probe comes alone
		return
	}
	r := l.reserveRuns(g)
	if r == nil {
		return
	}
	if r.Bytes() == 0 {
		r.Abandon(false)
		return
	}
	requests := g.runs(policy, r.Bytes())
	if len(requests) == 0 {
		r.addTo(g, nil, 0)
		return
	}
	stmt, cancel := context.WithTimeout(l.session.claims, l.p.opts.StatementTimeout)
	defer cancel()
	var claims []store.Claim
	err := routine.Protect("claiming runs", func() (err error) {
		claims, err = l.p.store.ClaimRuns(stmt, l.session.id, requests, l.p.clock.Now())
		return err
	})
	if err != nil {
		r.Abandon(true)
		l.p.log.Warn("inbox: claiming the next messages of lanes failed, they are claimed one by one",
			zap.String(telemetry.FieldHandlerKey, g.handler.Key()), zap.Error(err))
		return
	}
	r.addTo(g, claims, len(requests)*requests[0].Limit)
}

// reserveRuns reserves memory for runs. The reservation also keeps claims from being reconciled meanwhile, which would
// take those on their way for lost ones. It returns nil if the worker must not claim now.
func (l *loop) reserveRuns(g *group) *Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.stopping.Err() != nil || l.session.attempts.Err() != nil || !l.mayDispatch() ||
		l.p.Paused(g.handler) {
		return nil
	}
	r := &Reservation{loop: l, grant: l.sched.ReserveRuns(g.handler.Key(), maxRunBytes),
		until: time.Now().Add(reservationLife)}
	l.reservations = append(l.reservations, r)
	return r
}

// runs returns the requests for what follows the group's messages, which share the rest of the handler's run. A message
// with which a worker has vanished, or that the database has interrupted, is handled alone.
func (g *group) runs(policy *policy, bytes int) (requests []store.RunRequest) {
	for _, t := range g.tasks {
		if t.claim.Lane != nil && t.claim.AbandonedCount+t.claim.InterruptedCount == 0 {
			request := store.RunRequest{LaneRequest: policy.lanes.Request(*t.claim.Lane), Head: t.claim.Ref}
			request.ClaimKey = t.claim.HandlerKey
			requests = append(requests, request)
		}
	}
	for i := range requests {
		requests[i].Limit = (policy.runSize - len(g.tasks)) / len(requests)
		requests[i].Bytes = max(bytes/len(requests), 1)
	}
	return requests
}

// addTo adds the claims of runs to a group, of so many that were asked for, and ends the reservation. If the worker has
// ended, the claims are released.
func (r *Reservation) addTo(g *group, claims []store.Claim, asked int) {
	l := r.loop
	tasks := make([]*task, 0, len(claims))
	for _, c := range claims {
		t := newTask(c, g.handler, l.p.policies[g.handler])
		t.queued = time.Now()
		if l.act.claimer.isForeign(t) { // for a claim that asks who must run it
			t.Err = errForeign
		}
		tasks = append(tasks, t)
	}
	l.mu.Lock()
	r.free()
	closed := l.closed
	if !closed {
		l.act.claimer.held.add(claims)
		bytes := 0
		for _, t := range tasks {
			bytes += t.Size()
		}
		g.tasks, g.bytes = append(g.tasks, tasks...), g.bytes+bytes
		slots := l.slotsOf(g.handler)
		slots.Grew(bytes)
		slots.SetGroupSize(lanesOfNext(slots.GroupSize(), len(claims), asked, l.p.policies[g.handler].runSize))
	}
	l.mu.Unlock()
	if closed {
		l.giveBackLate(tasks)
	}
}

// runHeads is how many messages a run has at first for each that is claimed as usual.
const runHeads = 10

// lanesOfNext returns how many messages the next calls begin with, each of a lane of its own. If this call's lanes had
// as many more messages as were asked for, it is half, because such a message is cheaper than the first of a lane. If
// they had none, it is twice as many, so that calls have many messages then, too.
func lanesOfNext(lanes, found, asked, runSize int) int {
	switch {
	case found == 0:
		return min(2*lanes, max(runSize/2, 2))
	case found == asked:
		return max(lanes/2, min(20, runSize), 2)
	}
	return lanes
}

// isRun reports whether the group may have several messages of one lane.
func (g *group) isRun() bool { return g.handler.RunSize() > 0 }

// releaseAfterFailure releases the messages of runs after the first of their lane that has failed.
func (g *group) releaseAfterFailure() {
	failed := map[int64]bool{} // by lane
	for _, t := range g.tasks {
		switch {
		case t.claim.Lane == nil:
		case failed[t.claim.Lane.Key]:
			t.Err, t.Cause = errAfterFailure, nil
		case t.Err != nil || t.Again || t.Stale:
			failed[t.claim.Lane.Key] = true
		}
	}
}

// lastOfLanes returns of each lane's results the last one. A run has several.
func lastOfLanes(ended []result) []result {
	type lane struct {
		policy *policy
		key    int64
	}
	at := map[lane]int{}
	var last []result
	for _, r := range ended {
		k := lane{r.policy, r.claim.Lane.Key}
		if i, known := at[k]; known {
			last[i] = r
			continue
		}
		at[k] = len(last)
		last = append(last, r)
	}
	return last
}
