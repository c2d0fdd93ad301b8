package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/scheduler"
)

// runAll runs groups on Concurrency goroutines, within the handlers' own
// limits, to the end; ctx's end interrupts them.
func (m *manual) runAll(ctx context.Context, groups []*group, claimedAt time.Time) {
	attemptsCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errStopping) })()
	defer context.AfterFunc(m.turn.term, func() { cancel(context.Cause(m.turn.term)) })()
	slots := map[*handler.Handler]chan struct{}{}
	for _, g := range groups {
		if own := g.handler.Concurrency(); own > 0 && slots[g.handler] == nil {
			slots[g.handler] = make(chan struct{}, own)
		}
	}
	queue := make(chan *group)
	var workers sync.WaitGroup
	for range min(m.p.opts.Concurrency, len(groups)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for g := range queue {
				if own := slots[g.handler]; own != nil {
					own <- struct{}{}
					m.finish(attemptsCtx, g, claimedAt)
					<-own
					continue
				}
				m.finish(attemptsCtx, g, claimedAt)
			}
		}()
	}
	for _, g := range groups {
		queue <- g
	}
	close(queue)
	workers.Wait()
}

// groups puts together what may run together.
func (m *manual) groups(attempts []*task) []*group {
	byHandler := map[*handler.Handler][]*task{}
	var order []*handler.Handler
	for _, a := range attempts {
		if byHandler[a.Handler] == nil {
			order = append(order, a.Handler)
		}
		byHandler[a.Handler] = append(byHandler[a.Handler], a)
	}
	var groups []*group
	for _, h := range order {
		for queue := byHandler[h]; len(queue) > 0; {
			var tasks []*task
			tasks, queue = scheduler.Group(queue, m.p.policies[h].groupSize)
			groups = append(groups, newGroup(tasks))
		}
	}
	return groups
}

// finish runs a group, and what of it has to run again, to the end.
func (m *manual) finish(ctx context.Context, g *group, claimedAt time.Time) {
	for queue := g.tasks; len(queue) > 0; queue = append(g.again(), queue...) {
		var tasks []*task
		tasks, queue = scheduler.Group(queue, m.p.policies[g.handler].groupSize)
		g = newGroup(tasks)
		m.run(ctx, g, m.p.opts.StuckMessageThreshold*9/10-time.Since(claimedAt))
	}
}

// run runs a group that must end within limit: after that, others may take its
// claims for stuck.
func (m *manual) run(ctx context.Context, g *group, limit time.Duration) {
	var refused error
	switch {
	case ctx.Err() != nil:
		m.refuse(g.tasks, errStopping, context.Cause(ctx))
		return
	case limit <= 0:
		refused = errors.New("its claim waited too long behind others")
	case m.stuckCalls(g.handler, 0) >= m.p.opts.Concurrency:
		refused = errors.New("its handler's calls do not return")
	}
	if refused != nil {
		m.refuse(g.tasks, &attempt.Uncharged{Reason: refused}, nil)
		return
	}
	m.refuse(g.admit(m.p.policies[g.handler].breaker), &attempt.Uncharged{Reason: errors.New("its handler's circuit breaker is open")}, nil)
	if len(g.tasks) == 0 {
		return
	}
	// Calls one after the other share the time, and what one of them costs the
	// others by taking too long is left for them to run again alone.
	own := limit
	if n := len(g.tasks); n > 1 && g.handler.BatchSize() == 1 {
		own = limit / time.Duration(n+1)
	}
	for _, a := range g.tasks {
		if a.Timeout = a.policy.Timeout; a.Timeout == 0 || a.Timeout > own {
			a.Timeout = own // a failure, not an interruption
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, attempt.ErrTimeout)
	defer cancel()
	until := time.Now().Add(limit)
	m.p.runner.run(ctx, g, attempt.Call{
		Overdue:  func() { m.p.reportOverdue(g); m.stuckCalls(g.handler, 1) },
		Returned: func() { m.stuckCalls(g.handler, -1) },
		MayStart: func(ctx context.Context) error { return m.mayStart(ctx, until) },
	})
	for _, r := range m.p.resultsOf(g) {
		m.completer.add(r)
	}
}

// mayStart returns an error if others may have taken the claims over already, as
// after a freeze of the whole process.
func (m *manual) mayStart(ctx context.Context, until time.Time) error {
	switch {
	case !time.Now().Before(until):
		return errFenced
	case m.turn.held != nil && !m.turn.held():
		return errLockLost
	}
	return barred(ctx)
}

// refuse ends attempts that were not run.
func (m *manual) refuse(attempts []*task, err, cause error) {
	for _, a := range attempts {
		a.Err, a.Cause = err, cause
		m.completer.add(result{task: a, verdict: a.judge(m.p.clock.Now())})
	}
}

// stuckCalls counts a handler's calls in this drain that do not return.
func (m *manual) stuckCalls(h *handler.Handler, more int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck[h] += more
	return m.stuck[h]
}
