package processor

import (
	"context"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// pool runs what is claimed in the slots that the scheduler gives: of a session's loop, or of
// a drain. It belongs to that one's goroutine (or to who holds the loop's lock), to which
// attempts, in goroutines of their own, report by events. They hand their results to the
// completer themselves, so nothing is lost when they outlive the pool.
type pool struct {
	p         *Processor
	sched     *scheduler.Scheduler[*task]
	completer *completer
	crew      *crew
	reports   reports
	running   map[*group]bool

	// within returns the context that a group runs within, which the caller must end, and what
	// is asked right before each of its calls.
	within func(g *group) (ctx context.Context, end context.CancelFunc, mayStart func(context.Context) error)
	// late, unless nil, says that there is no time left to run a group.
	late func(g *group) bool
	// missed does what is left to do of an event that comes when the pool is closed.
	missed func(e event)
}

func (p *Processor) newPool(limits scheduler.Limits, completer *completer, crew *crew) pool {
	var rules []scheduler.Rules
	for _, h := range p.registry.Handlers() {
		rules = append(rules, p.policies[h].rules(h))
	}
	return pool{p: p, sched: scheduler.New[*task](limits, rules, p.opts.PollingInterval), completer: completer, crew: crew,
		reports: newReports(), running: map[*group]bool{}}
}

// shareOf is a handler's share of the work.
func (w *pool) shareOf(h *handler.Handler) *scheduler.Handler[*task] { return w.sched.Handler(h.Key()) }

// start fills the free slots from the queues.
func (w *pool) start() {
	for h, tasks := w.sched.Next(); h != nil; h, tasks = w.sched.Next() {
		g := newGroup(tasks)
		if w.late != nil && w.late(g) {
			w.giveBack(g.tasks, errLate)
			h.Ended()
			continue
		}
		// The circuit may have opened, or somebody else's probe be out, since
		// the last look.
		w.giveBack(g.admit(w.p.policies[g.handler].breaker), errCircuit)
		if len(g.tasks) == 0 {
			h.Ended()
			continue
		}
		w.running[g] = true
		w.crew.run(func() { w.attempt(g) })
	}
}

func (w *pool) attempt(g *group) {
	ctx, end, mayStart := w.within(g)
	defer end()
	w.p.runner.run(ctx, g, attempt.Call{
		Overdue:  func() { w.p.reportOverdue(g); w.send(event{overdue: g}) },
		Returned: func() { w.send(event{returned: g.handler}) },
		MayStart: mayStart,
	})
	for _, r := range w.p.resultsOf(g) {
		w.completer.add(r)
	}
	w.send(event{finished: g})
}

// send tells the owner what has happened, or does what is left to do if the pool
// is closed. It does not wait for it.
func (w *pool) send(e event) {
	if !w.reports.add(e) {
		w.missed(e)
	}
}

// close takes no more events.
func (w *pool) close() {
	for _, e := range w.reports.close() {
		w.missed(e)
	}
}

// handle takes in what has become of a group.
func (w *pool) handle(e event) {
	switch {
	case e.finished != nil:
		w.noteFinished(e.finished)
	case e.overdue != nil:
		w.noteOverdue(e.overdue)
	case e.returned != nil:
		w.shareOf(e.returned).Returned()
	}
}

// noteFinished frees the group's slot. What is to run again goes to the front
// of the queue: it has waited already.
func (w *pool) noteFinished(g *group) {
	delete(w.running, g)
	h := w.shareOf(g.handler)
	if !g.overdue {
		h.Ended()
	} else if !g.stuck() {
		h.Returned()
	}
	w.enqueue(g.again(), true)
}

// enqueue lets tasks of one handler wait for a slot, or gives them back if no call of it may
// start.
func (w *pool) enqueue(tasks []*task, front bool) {
	if len(tasks) > 0 {
		w.giveBack(w.shareOf(tasks[0].Handler).Enqueue(tasks, front), errUnreturned)
	}
}

// noteOverdue replaces the slot of a handler that ignores its cancelled
// context; its claims stay until it returns or the grace ends (contract 5.4).
func (w *pool) noteOverdue(g *group) {
	if g.overdue { // an earlier call of the same group was
		return
	}
	g.overdue = true
	h := w.shareOf(g.handler)
	dropped, last := h.Overdue()
	w.giveBack(dropped, errUnreturned)
	if last {
		w.p.log.Error("inbox: claiming stops for a handler whose calls do not return",
			zap.String(telemetry.FieldHandlerKey, g.handler.Key()), zap.Int(telemetry.FieldStuck, h.Stuck()))
	}
}

// applyPauses obeys what operators have paused.
func (w *pool) applyPauses() {
	for _, h := range w.p.registry.Handlers() {
		w.giveBack(w.shareOf(h).Pause(w.p.Paused(h)), errPaused)
	}
}

// applyBreakers gives back what waits for a handler whose circuit has opened, and returns those
// of which it was not open the last time.
func (w *pool) applyBreakers() (opened []*handler.Handler) {
	for _, h := range w.p.registry.Handlers() {
		dropped, anew := w.shareOf(h).Break()
		w.giveBack(dropped, errCircuit)
		if anew {
			opened = append(opened, h)
		}
	}
	return opened
}

// releaseQueued gives back what was claimed and never started.
func (w *pool) releaseQueued() {
	for _, h := range w.sched.Handlers() {
		w.giveBack(h.Drop(), errStopping)
	}
}

func (w *pool) giveBack(tasks []*task, why *attempt.Interruption) {
	for _, t := range tasks {
		w.completer.add(notRun(t, why, w.p.clock.Now()))
	}
}
