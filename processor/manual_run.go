package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
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
func (m *manual) groups(attempts []*attempt) []*group {
	byHandler := map[*handler.Handler][]*attempt{}
	var order []*handler.Handler
	for _, a := range attempts {
		if byHandler[a.handler] == nil {
			order = append(order, a.handler)
		}
		byHandler[a.handler] = append(byHandler[a.handler], a)
	}
	var groups []*group
	for _, h := range order {
		for queue := byHandler[h]; len(queue) > 0; {
			var g *group
			g, queue = takeGroup(queue, m.p.policies[h].share)
			groups = append(groups, g)
		}
	}
	return groups
}

// finish runs a group, and what of it has to run again, to the end.
func (m *manual) finish(ctx context.Context, g *group, claimedAt time.Time) {
	for queue := g.attempts; len(queue) > 0; queue = append(g.again(), queue...) {
		g, queue = takeGroup(queue, m.p.policies[g.handler].share)
		m.run(ctx, g, m.p.opts.StuckMessageThreshold*9/10-time.Since(claimedAt))
		for _, a := range g.attempts {
			if !a.again {
				r := m.p.resultOf(a)
				r.note()
				m.completer.add(r)
			}
		}
	}
}

// run runs a group that must end within limit: after that, others may take its
// claims for stuck.
func (m *manual) run(ctx context.Context, g *group, limit time.Duration) {
	admitted := &group{handler: g.handler}
	for _, a := range g.attempts {
		switch {
		case ctx.Err() != nil:
			a.err, a.cause = errStopping, errStopping
		case limit <= 0:
			a.err = &uncharged{reason: errors.New("its claim waited too long behind others")}
		case !a.policy.breaker.admit(a):
			a.err = &uncharged{reason: errors.New("its handler's circuit breaker is open")}
		default:
			if a.timeout == 0 || a.timeout > limit {
				a.timeout = limit // a failure, not an interruption
			}
			admitted.attempts = append(admitted.attempts, a)
		}
	}
	if len(admitted.attempts) > 0 {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout) // of all its calls together
		defer cancel()
		m.p.runner.run(ctx, admitted, watcher{overdue: func() { m.p.reportOverdue(g) }, returned: func() {}})
	}
}
