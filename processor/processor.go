// Package processor runs handlers: it claims due statuses, runs them on a bounded pool, stores their results, and
// recovers the claims of dead workers (contract 5).
//
// There is one file per service. From Start to Stop a Processor has one session after the other (a worker ID, with its
// heartbeat), each with a loop and a sweeper, and one completer. A loop and a drain are pools: their claimer claims
// tasks, which run in groups. docs/architecture.md shows the way of a status through them.
package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Processor is one inbox's worker. It is safe for concurrent use.
type Processor struct {
	*shared
	report func() (health, consumers string) // Config.Report; never nil
	// settings is Config.Settings.
	settings string
	reports  attempt.Reports
	runner   *runner
	health   *health
	fleet    *fleet

	progress  atomic.Int64         // when an attempt last ended, by the injected clock, in nanoseconds; 0 if none has
	loop      atomic.Pointer[loop] // the loop that runs locally dispatched statuses; nil while there is none
	notifier  notifier
	polls     sync.Once      // logs that no notification can arrive
	lockFreed routine.Signal // set when a ProcessPending of this process has released the lock

	lifecycle sync.Mutex                // held by Start and Stop from begin to end
	now       atomic.Pointer[activity]  // nil unless started
	drained   atomic.Pointer[time.Time] // when a drain last wrote its row; nil if none has
}

// shared has the fields that all services of a processor use.
type shared struct {
	opts       Options
	store      store.Store
	registry   *registry.Registry
	policies   map[*handler.Handler]*policy
	namespaces map[string]string // of the channels' IDs, by handler key
	clock      *clock.Database
	log        *zap.Logger
	counters   *telemetry.Counters
	lanes      *lanes
	foreign    *foreign
	wakeup     *wakeup
	paused     atomic.Pointer[map[string]bool] // by handler key, as last read
	pausing    routine.Lock                    // held while they are read
	conditions
}

// conditions are the failures that may last for a while.
type conditions struct {
	claiming, beating, recovering, storing, looping, locking, listening, connecting, cutting *condition.Condition
}

// Config is what a Processor works with. Running, Report, Hooks, Instruments, Middleware, Backoff,
// Redactor and Sealer are optional.
type Config struct {
	// DB is the database in which handlers get their sessions and transactions.
	DB       *gorm.DB
	Store    store.Store
	Registry *registry.Registry
	Options  Options
	// Namespaces are where message IDs are unique, by channel: a channel that is missing is a namespace itself.
	Namespaces map[string]string
	// MaxRetries replaces Options.MaxRetries for handlers that set no limit, by handler key.
	// A handler that is missing keeps Options.MaxRetries.
	MaxRetries map[string]int
	Clock      clock.Clock
	Logger     *zap.Logger
	Counters   *telemetry.Counters
	// Running tracks the running calls.
	Running *attempt.Running
	Hooks   handler.Hooks
	// Report returns the reasons why the process is not healthy, and the state of its consumers, as
	// JSON arrays. Each heartbeat stores both for operators (contract 11.1, 11.5). Nil stores none.
	Report func() (health, consumers string)
	// Settings is a JSON object that the worker's row shows operators; may be empty.
	Settings string
	// Instruments measure and trace; nil disables both.
	Instruments *telemetry.Instruments
	// Middleware runs around every call of every handler, outside the handler's own middleware.
	Middleware []handler.Middleware
	// Backoff replaces the exponential backoff of handlers that set none, see handler.Backoff.
	Backoff func(errorCount int) time.Duration
	// Redactor redacts errors before they are stored.
	Redactor redaction.Redactor
	// Sealer opens contents before handlers get them.
	Sealer sealing.Sealer
}

// New makes a Processor. It fails only if options are invalid, and joins their errors.
func New(cfg Config) (*Processor, error) {
	if problems := cfg.Options.Validate(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for h := range cfg.Registry.Handlers() {
		if h.Timeout() >= cfg.Options.StuckMessageThreshold {
			return nil, fmt.Errorf("handler %q: its option Timeout = %s: must be less than StuckMessageThreshold (%s)", h.Key(),
				h.Timeout(), cfg.Options.StuckMessageThreshold)
		}
	}
	s := &shared{opts: cfg.Options, store: cfg.Store, registry: cfg.Registry, policies: map[*handler.Handler]*policy{},
		namespaces: map[string]string{}, clock: clock.NewDatabase(cfg.Clock), log: cfg.Logger, counters: cfg.Counters,
		wakeup: newWakeup(), pausing: routine.NewLock()}
	s.foreign = &foreign{shared: s}
	s.paused.Store(&map[string]bool{})
	p := &Processor{shared: s, report: cfg.Report, settings: cfg.Settings, health: &health{},
		lockFreed: routine.NewSignal(),
		notifier:  notifier{shared: s, keys: map[string]bool{}},
		reports:   attempt.Reports{Counters: cfg.Counters, Instruments: cfg.Instruments, Hooks: cfg.Hooks, Log: cfg.Logger}}
	s.lanes = &lanes{shared: s, notify: p.notify}
	failing := func(name, meaning string) *condition.Condition {
		c := condition.New(cfg.Logger, cfg.Clock, zap.ErrorLevel, name, meaning)
		p.health.conditions = append(p.health.conditions, c)
		return c
	}
	p.claiming = failing("claiming", "it is tried again")
	p.beating = failing("heartbeat", "without one for WorkerTimeout others take the claims over")
	p.recovering = failing("recovery", "claims of workers that have vanished stay with them")
	p.storing = failing("storing results", "they are kept and tried again")
	p.looping = failing("processing loop", "it starts again")
	p.locking = failing("lock", "it can be neither taken nor renewed")
	p.listening = failing("listening", "polling goes on")
	p.connecting = failing("connections",
		"some were lost inside transactions, whose locks the server keeps until it has ended them")
	p.cutting = failing("handlers' transactions", "attempts are repeated uncharged")
	if p.report == nil {
		p.report = func() (health, consumers string) { return "", "" }
	}
	if p.opts.Mode == "" {
		p.opts.Mode = ModeCompeting
		if d, err := dialects.Of(cfg.DB); err == nil && d.SingleWriter { // whoever claims
			p.opts.Mode = ModeExclusive
		}
	}
	for h := range cfg.Registry.Handlers() {
		opts := cfg.Options
		if own, has := cfg.MaxRetries[h.Key()]; has {
			opts.MaxRetries = own
		}
		p.policies[h] = newPolicy(h, opts, cfg.Backoff, p.wakeup.wake)
		p.policies[h].redactor = cfg.Redactor
	}
	for s := range cfg.Registry.Subscriptions() {
		for _, key := range s.Handler.Keys() {
			p.namespaces[key] = cmp.Or(cfg.Namespaces[s.Channel], s.Channel)
		}
	}
	p.fleet = newFleet(s)
	p.runner = &runner{
		shared: s, measure: cfg.Instruments,
		attempts: &attempt.Runner{DB: cfg.DB, StatementTimeout: cfg.Options.StatementTimeout,
			TxIsolation: cfg.Options.TxIsolation, StuckGrace: cfg.Options.StuckHandlerGrace,
			Middleware: cfg.Middleware, Running: cfg.Running, Instruments: cfg.Instruments},
		interruptions: &interruptions{condition: p.cutting, maxDelay: cfg.Options.MaxRetryDelay},
		sealer:        cfg.Sealer,
	}
	return p, nil
}

// Wake makes the processor claim due statuses of these handlers now, or of all handlers without
// arguments; a processor that is not started does not. With Options.Listen the workers of other
// processes claim, too. It never blocks (contract 4.7).
func (p *Processor) Wake(handlerKeys ...string) {
	p.wakeup.wake(handlerKeys...)
	if len(handlerKeys) == 0 {
		handlerKeys = p.registry.Keys()
	}
	p.notify(handlerKeys...)
}

// WakeAt makes the processor claim once a status comes due. Workers of other processes find the status themselves, by
// their next poll at the latest (contract 4.8). It never blocks.
func (p *Processor) WakeAt(due time.Time) { p.wakeup.at(due) }

// takePaused reads which handler keys operators have paused. One call reads at a time. Otherwise an earlier read with a
// slow response would undo a later one.
func (s *shared) takePaused(ctx context.Context) error {
	if err := s.pausing.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for another read of the paused handlers: %w", err)
	}
	defer s.pausing.Release()
	keys, err := s.store.Paused(ctx)
	if err == nil {
		s.setPaused(keys)
	}
	return err
}

func (s *shared) setPaused(keys []string) {
	paused := make(map[string]bool, len(keys))
	for _, key := range keys {
		paused[key] = true
	}
	if before := s.paused.Swap(&paused); !maps.Equal(*before, paused) {
		s.wakeup.notify()
	}
}

// Paused reports whether operators have paused the handler under any of its keys, so that a pause from before a rename
// stays in force. It returns what the last heartbeat, or a later TakePaused, has read (contract 5.13).
func (p *Processor) Paused(h *handler.Handler) bool {
	paused := *p.paused.Load()
	return paused[h.Key()] || slices.ContainsFunc(h.LegacyKeys(), func(key string) bool { return paused[key] })
}

// TakePaused reads which handlers operators have paused, and applies it without waiting for the
// next heartbeat (contract 5.13).
func (p *Processor) TakePaused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	return p.takePaused(ctx)
}

// activity is one run of the processor, from Start to Stop.
type activity struct {
	completer *completer
	claimer   *claimer

	stop   context.CancelFunc // ends claiming; running handlers continue
	giveUp chan struct{}      // closed when the loop must not wait for running handlers any longer
	done   <-chan struct{}    // closed when the supervisor has returned
	// left are the groups that outlived their loop, at a stop or when an earlier session ended.
	left leftover
	// rounds are the running rounds of claiming. One may outlive its loop.
	rounds sync.WaitGroup
	// unsure is set when a loop ends whose accepts may bring, or may have lost, claims.
	unsure bool

	endStoring context.CancelFunc // ends storing of results as they come; flushLast stores the rest
	storing    <-chan struct{}    // closed when that has ended
	hard       context.Context    // bounds all statements of the completer
	endHard    context.CancelFunc

	endServices context.CancelFunc // ends heartbeats and sweeps, at the end of a stop
	services    sync.WaitGroup

	endWatching func() // of lost connections

	session atomic.Pointer[session] // the present one
}

// Start begins processing in the background and returns at once. The database need not be reachable yet. Starting twice
// does nothing; a stopped processor can be started again. It does not end with the context passed here.
func (p *Processor) Start(context.Context) error {
	p.lifecycle.Lock()
	defer p.lifecycle.Unlock()
	if p.now.Load() != nil {
		return nil
	}
	h := newHeld()
	completer := p.newCompleter(h)
	claimer := newClaimer(p.shared, h, func(r result) { completer.add(r) })
	a := &activity{completer: completer, claimer: claimer, giveUp: make(chan struct{}), endWatching: p.watchConnections()}
	var work, alive, storing context.Context
	work, a.stop = context.WithCancel(context.Background())
	alive, a.endServices = context.WithCancel(context.Background())
	storing, a.endStoring = context.WithCancel(context.Background())
	a.hard, a.endHard = context.WithCancel(context.Background())
	first := p.newSession(alive) // the worker ID is known when Start returns
	a.session.Store(first)
	a.storing = routine.Go(func() {
		for storing.Err() == nil {
			err := routine.Protect("storing", func() error { completer.run(storing, a.hard); return nil })
			if err != nil {
				p.storing.Begin(nil, err)
				routine.Sleep(storing, p.opts.HeartbeatInterval)
				completer.arrived.Notify() // the signal for the queued results may have been consumed
			}
		}
	})
	a.done = routine.Go(func() { p.supervise(work, alive, a, first) })
	if p.listens() {
		a.services.Go(func() { p.listen(work) })
	}
	p.now.Store(a)
	return nil
}

func (p *Processor) newSession(alive context.Context) *session {
	s := newSession(alive, p.opts.WorkerTimeout)
	s.lock = p.sessionLock(s)
	s.limits = p.newAllotments(s.id, p.opts.WorkerTimeout, func(h *handler.Handler) int { return p.callsOf(s, h) })
	return s
}

// supervise runs one session after the other until work ends. A new session begins when the worker
// was fenced or its loop crashed.
func (p *Processor) supervise(work, alive context.Context, a *activity, s *session) {
	for ; work.Err() == nil; s = p.newSession(alive) {
		h := &heart{shared: p.shared, row: p.row(), report: p.report}
		// Publish the session before its first heartbeat. A stop may cancel that heartbeat although
		// it gets stored, and must be able to mark the worker as stopped then.
		a.session.Store(s)
		if err := p.register(work, h, s); errors.Is(err, store.ErrWorkerReleased) {
			// The row of an earlier try was stored although its answer was lost, and others have declared that ID dead.
			s.end(errFenced)
			continue
		} else if err != nil {
			s.end(errStopping)
			return
		}
		a.completer.hurry()
		p.looping.End(nil)
		services, end := context.WithCancel(alive)
		var running sync.WaitGroup
		service := func(what string, run func()) {
			running.Go(func() {
				if err := routine.Protect(what, func() error { run(); return nil }); err != nil {
					p.looping.Begin(nil, err)
					s.end(errFenced)
				}
			})
		}
		service("the heartbeat", func() { h.keep(services, s) })
		service("the sweep", func() { p.sweep(services, h, s) })
		if s.lock != nil {
			service("the lock's renewal", func() {
				p.tryLock(services, s.lock)
				p.keepLock(services, s.attempts, s.lock, p.lockFreed)
			})
		}
		ended := routine.Go(running.Wait)
		a.services.Go(func() { <-ended })
		err := routine.Protect("the processor's loop", func() error { newLoop(p, a, s).run(work, a.giveUp); return nil })
		if err != nil {
			p.looping.Begin(nil, err, zap.Duration(telemetry.FieldTryingAgainAfter, p.opts.HeartbeatInterval))
			s.end(errFenced)
			routine.Sleep(work, p.opts.HeartbeatInterval)
		}
		if work.Err() != nil {
			context.AfterFunc(alive, end)
			return // heartbeats continue while Stop stores the last results
		}
		end()
		s.end(errFenced)
		for _, done := range []<-chan struct{}{ended, routine.Go(a.rounds.Wait)} {
			select {
			case <-done:
			case <-a.giveUp: // for the case that a hook ignores its context
			}
		}
		p.leaveLock(work, alive, a, s)
	}
}

// register begins a session, and retries until that succeeds, work ends or the session's ID cannot be used any more.
func (p *Processor) register(work context.Context, h *heart, s *session) error {
	for {
		err := routine.Protect("the heartbeat", func() error { return p.begin(work, h, s) })
		if err == nil {
			p.beating.End(nil)
			return nil
		}
		if work.Err() != nil || errors.Is(err, store.ErrWorkerReleased) {
			return err
		}
		p.beating.Begin(nil, err, zap.Duration(telemetry.FieldTryingAgainAfter, p.opts.HeartbeatInterval))
		routine.Sleep(work, p.opts.HeartbeatInterval)
	}
}

// begin reads the database's clock, sends a session's first heartbeat and takes its portions of limits.
func (p *Processor) begin(ctx context.Context, h *heart, s *session) error {
	if err := p.readClock(ctx); err != nil {
		return err
	}
	if err := h.beat(ctx, s); err != nil || !s.limits.leased() {
		return err
	}
	workers, err := h.workers(ctx)
	if err != nil {
		return err
	}
	return s.limits.adjust(ctx, workers, func(string) bool { return false })
}

// callsOf returns how many calls of a handler run in a session. Before its loop begins, and after it has ended, their
// number is unknown.
func (p *Processor) callsOf(s *session, h *handler.Handler) int {
	l := p.loop.Load()
	if l == nil || l.session != s {
		return math.MaxInt
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slotsOf(h).Calls()
}

// readClock reads the database's clock.
func (p *Processor) readClock(ctx context.Context) error {
	if !p.clock.Follows || p.store.SingleWriter() {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	asked := time.Now()
	read, err := p.store.Clock(stmt, p.clock.Injected.Now())
	if err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	p.clock.Follow(read, asked)
	return nil
}

// Stop ends processing (contract 5.8). Claiming stops at once. Running handlers have StopBudget to return and are then
// cancelled. All results are stored, and interrupted attempts are released uncharged. Stop returns by ctx's deadline;
// within it, time is reserved for cancelling and storing.
//
// It returns an error that names the handlers that still run, or says that results could not be stored or claims not be
// released. Other workers recover these claims. Stopping twice, or before Start, only waits, for a second at most,
// until other processes are notified of accepted messages.
func (p *Processor) Stop(ctx context.Context) error {
	p.lifecycle.Lock()
	defer p.lifecycle.Unlock()
	a := p.now.Load()
	if a == nil {
		p.notifier.wait(ctx)
		return nil
	}
	p.now.Store(nil)
	budget := newStopBudget(ctx, p.opts)
	defer time.AfterFunc(time.Until(budget.flush), a.endHard).Stop()
	a.stop()
	if !waitFor(a.done, budget.soft) {
		a.session.Load().end(errStopping)
		if !waitFor(a.done, budget.cancel) {
			close(a.giveUp)
			<-a.done
		}
	}
	// Half of the time that is left is for a claim that has outlived the loop: it is cancelled now, and its claimed
	// statuses are released.
	s := a.session.Load()
	s.endClaims()
	claiming := !waitFor(routine.Go(a.rounds.Wait), time.Now().Add(time.Until(budget.flush)/2))
	// Everything that will have a result has it in the completer's queue now. If a hook hangs in
	// the completer's goroutine, that goroutine is abandoned.
	a.endStoring()
	unstored := a.completer.backlog()
	if waitFor(a.storing, budget.flush) {
		last := make(chan int, 1)
		go func() { last <- a.completer.flushLast(a.hard) }()
		select {
		case unstored = <-last:
		case <-time.After(time.Until(budget.flush) + 200*time.Millisecond):
			unstored++ // a hook hangs, so at least the result that it was called for is not known to be stored
		}
	}
	s.end(errStopping)
	held := a.claimer.held.count()
	settled := unstored == 0 && a.left.count() == 0 && !claiming && held == 0
	var lost error
	if settled && (a.unsure || a.claimer.lostResponse()) {
		lost = a.claimer.releaseAll(a.hard, s.id)
		settled = lost == nil
	}
	if settled {
		p.markStopped(a.hard, s)
		s.limits.leave(a.hard)
	}
	if s.lock != nil {
		p.noteRelease(s.lock.leave(a.hard, settled))
	}
	p.notifier.wait(a.hard) // for accepted messages, and for the claims that this stop has released
	a.endHard()
	a.endServices()
	a.endWatching()
	// A hook that ignores its context must not delay the stop.
	waitFor(routine.Go(a.services.Wait), time.Now().Add(max(time.Until(budget.flush), time.Second)))
	p.notifier.wait(a.hard) // a sweep may have had more to send, which is given up
	var found problems.List
	if left := a.left.count(); left > 0 {
		found.Addf("stop: %d handlers still run, their claims are recovered by another worker: %s", left, a.left.names())
	}
	if unstored > 0 {
		found.Addf("stop: %d results could not be stored, their claims are recovered by another worker", unstored)
	}
	if claiming {
		found.Addf("stop: a claim did not end, what it claims is recovered by another worker")
	}
	if lost != nil {
		found.Addf("stop: claims whose response was lost are recovered by another worker: %w", lost)
	}
	if held > 0 && len(found) == 0 {
		found.Addf("stop: %d claims could not be released, they are recovered by another worker", held)
	}
	return errors.Join(found...)
}

// watchConnections reports lost connections whose transactions the server has open, until end is called.
func (p *Processor) watchConnections() (end func()) {
	if p.store.SingleWriter() {
		return func() {}
	}
	pool, err := p.runner.attempts.DB.DB()
	if err != nil {
		return func() {} // no pool of database/sql, so none of pgx
	}
	unwatch := pgxtx.Watch(pool, func(open int, since time.Time) {
		if open == 0 {
			p.connecting.End(nil)
			return
		}
		p.connecting.Begin(nil, fmt.Errorf("%d transactions are open whose connections were lost, the oldest since %s: "+
			"the server is asked to end them", open, since.UTC().Format(time.RFC3339)))
	})
	return func() {
		unwatch()
		p.connecting.Forget(nil)
		p.connecting.Clear()
	}
}

// markStopped marks the worker as stopped. If that fails, the others notice that it is silent.
func (p *Processor) markStopped(hard context.Context, s *session) {
	stmt, cancel := context.WithTimeout(hard, p.opts.StatementTimeout)
	defer cancel()
	if err := p.store.StopWorker(stmt, s.id, p.clock.Now()); err != nil {
		p.log.Warn("inbox: worker could not be marked as stopped", zap.Error(err))
	}
}

// stopBudget divides the time of a stop. The last fifth is for storing results and releasing claims.
// The fifth before it is for handlers to notice that they are cancelled.
type stopBudget struct{ soft, cancel, flush time.Time }

func newStopBudget(ctx context.Context, opts Options) stopBudget {
	now := time.Now()
	// A short budget for handlers must not shorten the time for storing.
	end := now.Add(opts.StopBudget*5/3 + opts.StatementTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	total := max(end.Sub(now), 0)
	soft := min(opts.StopBudget, total*3/5)
	return stopBudget{soft: now.Add(soft), cancel: now.Add(total * 4 / 5), flush: now.Add(total * 39 / 40)}
}

func waitFor(done <-chan struct{}, until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// leftover is the set of groups that are still running after their loop has ended. The zero value is empty.
type leftover struct {
	mu     sync.Mutex
	groups map[*group]bool
}

func (l *leftover) add(groups map[*group]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.groups == nil {
		l.groups = map[*group]bool{}
	}
	for g := range groups {
		l.groups[g] = true
	}
}

func (l *leftover) remove(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, g)
}

func (l *leftover) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.groups)
}

// maxNamed is the number of messages that names lists at most.
const maxNamed = 10

// names lists the handler keys and message IDs of the groups, for an error.
func (l *leftover) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var each []string
	for g := range l.groups {
		for _, a := range g.tasks {
			each = append(each, fmt.Sprintf("handler %q with message %q", a.claim.HandlerKey, a.claim.MessageID))
		}
	}
	slices.Sort(each)
	if more := len(each) - maxNamed; more > 0 {
		each = append(each[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(each, ", ")
}
