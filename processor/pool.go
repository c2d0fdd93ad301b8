package processor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// pool runs claimed messages in the scheduler's slots, for a session's loop or for a drain. Attempts run in goroutines
// of the executor. When an attempt has ended, its goroutine frees the slot and asks the owner what to run next. Results
// go to the completer directly, so none is lost if an attempt outlives the pool.
type pool struct {
	p         *Processor
	owner     owner
	completer *completer
	executor  routine.Executor // of attempts; closed by the owner
	limits    *allotments

	// changed wakes the owner.
	changed routine.Signal

	// mu guards the following fields and the owner's state. The owner holds it all the time except while it waits for
	// something.
	mu      sync.Mutex
	sched   *scheduler.Scheduler[*task]
	running map[*group]bool
	closed  bool
	broken  error // a panic of update, which the owner has to repeat
}

// owner is the loop or drain that a pool works for. Its methods are called with the pool's lock, except for extend.
type owner interface {
	// extend adds to a group that is about to run what follows its messages in their lanes. It is called without the lock.
	extend(g *group)
	// within returns the context of a group, with its cancel function, and a check that runs right before each call.
	within(g *group) (ctx context.Context, end context.CancelFunc, mayStart func(context.Context) error)
	// late reports whether a group has no time left to run.
	late(g *group) bool
	// ended is called when a group has ended and its slot is free. again says that some of its
	// messages are queued again. It returns the group to run next in the same goroutine, if any.
	ended(g *group, again bool) (next *group)
	// outlived is called instead of ended after the pool was closed.
	outlived(g *group)
}

func (p *Processor) newPool(owner owner, limits scheduler.Limits, completer *completer, allotted *allotments) pool {
	var rules []scheduler.Rules
	for h := range p.registry.Handlers() {
		rules = append(rules, allotted.rules(p.policies[h].rules(h), h))
	}
	return pool{p: p, owner: owner, completer: completer, limits: allotted, changed: routine.NewSignal(),
		sched: scheduler.New[*task](limits, rules, p.opts.PollingInterval), running: map[*group]bool{}}
}

// slotsOf returns the scheduler's state of a handler.
func (w *pool) slotsOf(h *handler.Handler) *scheduler.Handler[*task] { return w.sched.Handler(h.Key()) }

// start fills the free slots from the queues.
func (w *pool) start() {
	for g := w.next(); g != nil; g = w.next() {
		w.executor.Run(func() { w.run(g) })
	}
}

// next returns the group to start now, which holds a slot from now on; nil if none may start.
func (w *pool) next() *group {
	for w.broken == nil {
		h, tasks := w.sched.Next()
		if h == nil {
			break
		}
		g := newGroup(tasks)
		if w.owner.late(g) {
			w.giveBack(g.tasks, errLate)
			h.NotStarted(g.bytes)
			continue
		}
		if w.setAside(g); len(g.tasks) > 0 {
			// Since the last check the circuit may have opened, or another group's probe may have started.
			w.giveBack(g.admit(w.p.policies[g.handler].breaker), errCircuit)
		}
		if len(g.tasks) == 0 {
			h.NotStarted(g.bytes)
			continue
		}
		g.ctx, g.end, g.mayStart = w.owner.within(g)
		g.started = time.Now()
		w.running[g] = true
		return g
	}
	return nil
}

// run runs a group, and then others as long as the owner returns one.
func (w *pool) run(g *group) {
	for g != nil {
		w.attempt(g)
		var next *group
		w.update(func() { next = w.owner.ended(g, w.noteFinished(g)) }, func() { w.owner.outlived(g) })
		g = next
	}
}

func (w *pool) attempt(g *group) {
	defer g.end()
	w.owner.extend(g)
	w.p.runner.run(g.ctx, g, attempt.Call{
		Overdue: func() {
			w.p.reportOverdue(g)
			w.update(func() { w.noteOverdue(g); w.changed.Notify() }, nil)
		},
		Returned: func() { w.update(func() { w.slotsOf(g.handler).Returned(g.bytes); w.changed.Notify() }, nil) },
		MayStart: g.mayStart,
	})
	w.completer.add(w.p.resultsOf(g)...)
}

// update calls change with the lock or, if the pool is closed, afterClose, which may be nil. A panic ends the owner and
// not the process: the state may be inconsistent, and a processor begins a new session then.
func (w *pool) update(change, afterClose func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	closed := w.closed
	if closed {
		change = afterClose
	}
	if change == nil {
		return
	}
	err := routine.Protect("dispatching", func() error { change(); return nil })
	switch {
	case err == nil:
	case closed:
		w.p.log.Error("inbox: claims could not be released, they are recovered", zap.Error(err))
	default:
		w.broken = err
		w.changed.Notify()
	}
}

// unlocked calls f without the lock, which the owner holds.
func (w *pool) unlocked(f func()) {
	w.mu.Unlock()
	defer w.mu.Lock()
	f()
}

// check repeats a panic of update in the owner's goroutine.
func (w *pool) check() {
	if w.broken != nil {
		panic(w.broken)
	}
}

// noteFinished frees the group's slot. Messages that must run again go to the front of the
// queue, because they have waited already; it reports whether there are any.
func (w *pool) noteFinished(g *group) bool {
	delete(w.running, g)
	h := w.slotsOf(g.handler)
	if !g.overdue {
		h.Ended(time.Since(g.started), g.bytes)
	} else if !g.stuck() {
		h.Returned(g.bytes)
	}
	again := g.again()
	w.enqueue(again, true)
	return len(again) > 0
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
	w.giveBack(w.slotsOf(tasks[0].Handler).Enqueue(tasks, front), errNoCalls)
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
	w.giveBack(dropped, errNoCalls)
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
		w.completer.add(releasedResult(t, why, w.p.clock.Now()))
	}
}
