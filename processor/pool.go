package processor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// pool runs claimed messages in the scheduler's slots, for a session's loop or for a drain. It is
// not safe for concurrent use: the loop guards it with its lock, a drain uses it in one
// goroutine. Attempts run in goroutines of their own and report to the owner by events. They
// pass their results to the completer directly, so no result is lost if they outlive the pool.
type pool struct {
	p         *Processor
	sched     *scheduler.Scheduler[*task]
	completer *completer
	executor  *executor
	reports   reports
	running   map[*group]bool

	// within returns the context of a group, with its cancel function, and a check that runs
	// right before each call.
	within func(g *group) (ctx context.Context, end context.CancelFunc, mayStart func(context.Context) error)
	// late reports whether a group has no time left to run; nil means never.
	late func(g *group) bool
	// missed handles an event that comes after close.
	missed func(e event)
}

func (p *Processor) newPool(limits scheduler.Limits, completer *completer, executor *executor) pool {
	var rules []scheduler.Rules
	for h := range p.registry.Handlers() {
		rules = append(rules, p.policies[h].rules(h))
	}
	return pool{p: p, sched: scheduler.New[*task](limits, rules, p.opts.PollingInterval), completer: completer,
		executor: executor, reports: newReports(), running: map[*group]bool{}}
}

// slotsOf returns the scheduler's state of a handler.
func (w *pool) slotsOf(h *handler.Handler) *scheduler.Handler[*task] { return w.sched.Handler(h.Key()) }

// start fills the free slots from the queues.
func (w *pool) start() {
	for h, tasks := w.sched.Next(); h != nil; h, tasks = w.sched.Next() {
		g := newGroup(tasks)
		if w.late != nil && w.late(g) {
			w.giveBack(g.tasks, errLate)
			h.NotStarted()
			continue
		}
		// Since the last check the circuit may have opened, or another group's probe may have
		// started.
		w.giveBack(g.admit(w.p.policies[g.handler].breaker), errCircuit)
		if len(g.tasks) == 0 {
			h.NotStarted()
			continue
		}
		g.started = time.Now()
		w.running[g] = true
		w.executor.run(func() { w.attempt(g) })
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

// send passes an event to the owner, or to missed if the pool is closed. It does not block.
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

// handle processes an event about a group.
func (w *pool) handle(e event) {
	switch {
	case e.finished != nil:
		w.noteFinished(e.finished)
	case e.overdue != nil:
		w.noteOverdue(e.overdue)
	case e.returned != nil:
		w.slotsOf(e.returned).Returned()
	}
}

// noteFinished frees the group's slot. Messages that must run again go to the front of the
// queue, because they have waited already.
func (w *pool) noteFinished(g *group) {
	delete(w.running, g)
	h := w.slotsOf(g.handler)
	if !g.overdue {
		h.Ended(time.Since(g.started))
	} else if !g.stuck() {
		h.Returned()
	}
	w.enqueue(g.again(), true)
}

// enqueue queues tasks of one handler, or releases them if no call of it may start.
func (w *pool) enqueue(tasks []*task, front bool) {
	if len(tasks) == 0 {
		return
	}
	now := time.Now()
	for _, t := range tasks {
		t.queued = now
	}
	w.giveBack(w.slotsOf(tasks[0].Handler).Enqueue(tasks, front), errUnreturned)
}

// noteOverdue replaces the slot of a handler that ignores its cancelled context. Its claims stay
// until it returns or StuckHandlerGrace ends.
func (w *pool) noteOverdue(g *group) {
	if g.overdue { // an earlier call of the same group was overdue
		return
	}
	g.overdue = true
	h := w.slotsOf(g.handler)
	dropped, last := h.Overdue()
	w.giveBack(dropped, errUnreturned)
	if last {
		w.p.log.Error("inbox: claiming stops for a handler whose calls do not return",
			zap.String(telemetry.FieldHandlerKey, g.handler.Key()), zap.Int(telemetry.FieldStuck, h.Stuck()))
	}
}

// applyPauses releases the queues of handlers that operators have paused.
func (w *pool) applyPauses() {
	for h := range w.p.registry.Handlers() {
		w.giveBack(w.slotsOf(h).Pause(w.p.Paused(h)), errPaused)
	}
}

// applyBreakers releases the queues of handlers whose circuit breaker is open, and returns those
// whose breaker has opened since the last call.
func (w *pool) applyBreakers() (opened []*handler.Handler) {
	for h := range w.p.registry.Handlers() {
		dropped, justOpened := w.slotsOf(h).ApplyCircuit()
		w.giveBack(dropped, errCircuit)
		if justOpened {
			opened = append(opened, h)
		}
	}
	return opened
}

// releaseQueued releases all messages that were claimed and not started.
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

// executor runs functions on goroutines that it reuses. A new goroutine starts with a small stack, which
// grows by copying until it holds what an attempt needs; for handlers that take microseconds that
// costs as much as the handler. Handlers are not called on these goroutines but on new ones (see
// attempt.call), because what a handler leaves behind, such as a locked thread or labels, must not
// affect others.
type executor struct {
	mu     sync.Mutex
	idle   []chan func() // job channels of the waiting goroutines, each with room for one job
	closed bool
}

// newExecutor returns an executor without goroutines. The caller must close it.
func newExecutor() *executor { return &executor{} }

// run runs f on another goroutine and returns at once. It may be called after close.
func (c *executor) run(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		c.idle[last] <- f
		c.idle = c.idle[:last]
		return
	}
	go c.work(make(chan func(), 1), f)
}

func (c *executor) work(jobs chan func(), f func()) {
	for f != nil {
		f()
		f = nil // let the garbage collector free what f refers to
		if !c.wait(jobs) {
			return
		}
		f = <-jobs
	}
}

// wait offers the goroutine for the next job. It returns false after close.
func (c *executor) wait(jobs chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.idle = append(c.idle, jobs)
	}
	return !c.closed
}

// close ends the waiting goroutines; each busy one ends after its job. It may be called twice.
func (c *executor) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, jobs := range c.idle {
		close(jobs)
	}
	c.idle = nil
}
