// Package processor runs handlers: it claims due statuses, runs them on a bounded pool, stores
// their results, and recovers the claims of dead workers (contract 5).
//
// There is one file per service: claim, task (an attempt and its status), completer, session
// (heartbeat and fencing) and sweeper. The loop ties them together.
package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Processor is one inbox's worker. It is safe for concurrent use.
type Processor struct {
	opts     Options
	store    store.Store
	registry *registry.Registry
	clock    *databaseClock
	log      *zap.Logger
	counters *telemetry.Counters
	reports  attempt.Reports
	report   func() (health, consumers string) // Config.Report; never nil

	policies   map[*handler.Handler]*policy
	namespaces map[string]string // of the channels' IDs, by handler key
	runner     *runner
	lanes      *lanes
	wakeup     *wakeup
	health     *health
	fleet      *fleet
	foreign    *foreign
	claiming   *condition.Condition
	beating    *condition.Condition
	recovering *condition.Condition
	storing    *condition.Condition
	looping    *condition.Condition
	locking    *condition.Condition
	listening  *condition.Condition
	connecting *condition.Condition
	cutting    *condition.Condition

	progress atomic.Int64 // when an attempt last ended, by the injected clock, in nanoseconds; 0 if none has

	loop atomic.Pointer[loop] // the loop that runs locally dispatched statuses; nil while there is none

	notifier notifier
	polls    sync.Once // logs that no notification can arrive

	lockFreed routine.Signal // set when a ProcessPending of this process has released the lock

	pauseMu sync.Mutex
	paused  map[string]bool

	lifecycle sync.Mutex // held by Start and Stop from begin to end
	mu        sync.Mutex
	now       *activity // nil unless started
	drained   time.Time // when a drain last wrote its row
}

// Config is what a Processor works with. Running, Report, Hooks, Instruments, Middleware, Backoff
// and Redactor are optional.
type Config struct {
	// DB is the database in which handlers get their sessions and transactions.
	DB       *gorm.DB
	Store    store.Store
	Registry *registry.Registry
	Options  Options
	// Namespaces are where message IDs are unique, by channel: a channel that is missing is one of its own.
	Namespaces map[string]string
	// MaxRetries replaces Options.MaxRetries for handlers without a limit of their own, by handler key.
	// A handler that is missing keeps that of Options.
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
	// Instruments measure and trace; nil disables both.
	Instruments *telemetry.Instruments
	// Middleware runs around every call of every handler, outside the handler's own middleware.
	Middleware []handler.Middleware
	// Backoff replaces the exponential backoff of handlers that have none of their own, see handler.Backoff.
	Backoff func(errorCount int) time.Duration
	// Redactor redacts errors before they are stored.
	Redactor redaction.Redactor
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
	p := &Processor{
		opts: cfg.Options, store: cfg.Store, registry: cfg.Registry, clock: newDatabaseClock(cfg.Clock),
		log: cfg.Logger, counters: cfg.Counters, report: cfg.Report,
		policies: map[*handler.Handler]*policy{}, namespaces: map[string]string{}, wakeup: newWakeup(),
		paused: map[string]bool{}, lockFreed: routine.NewSignal(), health: &health{},
	}
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
	p.notifier = notifier{store: cfg.Store, timeout: cfg.Options.StatementTimeout, log: cfg.Logger,
		keys: map[string]bool{}}
	p.foreign = &foreign{opts: p.opts, namespaces: p.namespaces}
	p.fleet = newFleet(p.opts, cfg.Registry, p.namespaces, cfg.Clock, cfg.Logger)
	p.lanes = &lanes{store: cfg.Store, registry: cfg.Registry, policies: p.policies, timeout: cfg.Options.StatementTimeout,
		now: p.clock.Now,
		log: cfg.Logger, wake: p.wakeup.wake}
	p.reports = attempt.Reports{Counters: cfg.Counters, Instruments: cfg.Instruments, Hooks: cfg.Hooks, Log: cfg.Logger}
	p.runner = &runner{
		attempts: &attempt.Runner{DB: cfg.DB, StatementTimeout: cfg.Options.StatementTimeout,
			TxIsolation: cfg.Options.TxIsolation,
			StuckGrace:  cfg.Options.StuckHandlerGrace, Middleware: cfg.Middleware, Running: cfg.Running,
			Instruments: cfg.Instruments},
		store: cfg.Store, now: p.clock.Now, measure: cfg.Instruments,
		interruptions: &interruptions{condition: p.cutting, maxDelay: cfg.Options.MaxRetryDelay},
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

func (p *Processor) newCompleter(h *held) *completer {
	c := newCompleter(p.store, p.opts, p.clock.Now, p.storing, p.lanes,
		func(ctx context.Context, r result, applied bool) {
			h.drop(r.claim)
			p.recordResult(ctx, r, applied)
		}, p.wakeup.notify)
	c.reserve = p.reserveNext
	return c
}

func (p *Processor) newClaimer(h *held, addResult func(result)) *claimer {
	return &claimer{store: p.store, registry: p.registry, policies: p.policies, opts: p.opts, now: p.clock.Now, held: h,
		lanes: p.lanes, addResult: addResult, cursors: cursors{},
		foreign: p.foreign, passes: map[string]*pass{},
		routine: time.Now().Add(routineSweeps * p.opts.SweepInterval)}
}

// resultsOf returns the results of a group's finished tasks and reports them to the circuit
// breaker. Tasks that run again have no result. It ends the spans of all tasks.
func (p *Processor) resultsOf(g *group) []result {
	results := slices.Grow(g.one.result[:0], len(g.tasks))
	for _, t := range g.tasks {
		if t.Again {
			if t.report != nil {
				t.report(errNeutral)
				t.report = nil
			}
			continue
		}
		r := p.resultOf(t)
		t.Came(r.outcome, r.failure)
		results = append(results, r)
	}
	for _, t := range g.tasks { // after the loop above, because a call may have been for several tasks
		t.EndSpan()
	}
	g.note(results)
	return results
}

// resultOf returns the result of one task. A panic in here, such as one of the application's clock
// or redaction, fails the attempt and does not end the process.
func (p *Processor) resultOf(t *task) (r result) {
	judge := func() result { return result{task: t, verdict: t.judge(p.clock.Now())} }
	defer func() {
		if v := recover(); v != nil {
			t.Err = attempt.Recovered(v)
			r = judge()
		}
	}()
	return judge()
}

func (p *Processor) reportOverdue(g *group) {
	p.log.Error("inbox: handler ignores its cancelled context", zap.String(telemetry.FieldHandlerKey, g.handler.Key()),
		zap.String(telemetry.FieldMessageID, g.tasks[0].claim.MessageID), zap.Int(telemetry.FieldMessages, len(g.tasks)))
}

// recordResult counts a result that was stored, or that turned out to be stale, and calls the hooks.
func (p *Processor) recordResult(ctx context.Context, r result, applied bool) {
	if r.outcome != handler.AttemptReleased || !applied {
		p.runner.interruptions.forget(r.claim.StatusID)
	}
	if !applied {
		p.counters.OfHandler(telemetry.Fenced, r.claim.HandlerKey, 1)
		p.log.Warn("inbox: result of a stale claim changed nothing", r.fields(zap.String(telemetry.FieldOutcome,
			string(r.outcome)), zap.NamedError(telemetry.FieldHandlerError, r.failure))...)
		return
	}
	switch {
	case !r.next.IsZero():
		p.wakeup.at(r.next)
	case r.outcome == handler.AttemptReleased: // due now, for other workers or for a later session of this one
		p.Wake(r.Handler.Key())
	}
	switch r.outcome {
	case handler.AttemptFailed:
		p.log.Warn("inbox: attempt failed", r.fields(zap.Time(telemetry.FieldNextAttemptAt, r.next), zap.Error(r.failure))...)
	case handler.AttemptPoisoned:
		p.log.Error("inbox: message poisoned", r.fields(zap.Error(r.failure))...)
	case superseded:
		p.counters.OfHandler(telemetry.Superseded, r.claim.HandlerKey, 1)
		return
	}
	if r.outcome != handler.AttemptReleased {
		p.progress.Store(p.clock.injected.Now().UnixNano())
		if r.outcome == handler.AttemptCompleted {
			p.reports.Instruments.Completed(ctx, r.claim.HandlerKey, p.clock.Now().Sub(r.claim.CreatedAt))
		}
	}
	transport := ""
	if r.claim.Message != nil {
		transport = r.claim.Message.TransportName
	}
	p.reports.Ended(ctx, r.event(), transport, r.Cause)
}

// fields returns the log fields that name the attempt.
func (r *result) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String(telemetry.FieldHandlerKey, r.claim.HandlerKey),
		zap.String(telemetry.FieldMessageID, r.claim.MessageID),
		zap.Int(telemetry.FieldAttempt, r.number())}, more...)
}

// event returns what the hooks receive.
func (r *result) event() handler.AttemptEvent {
	e := handler.AttemptEvent{MessageID: r.claim.MessageID, HandlerKey: r.claim.HandlerKey, Attempt: r.number(),
		Outcome: r.outcome, Err: r.failure, Duration: r.Duration, NextAttemptAt: r.next}
	if r.claim.Message != nil {
		e.Type = r.claim.Message.Type
	}
	return e
}

func (p *Processor) setPaused(keys []string) {
	p.pauseMu.Lock()
	changed := len(keys) != len(p.paused) || slices.ContainsFunc(keys, func(key string) bool { return !p.paused[key] })
	if changed {
		p.paused = make(map[string]bool, len(keys))
		for _, key := range keys {
			p.paused[key] = true
		}
	}
	p.pauseMu.Unlock()
	if changed {
		p.wakeup.notify()
	}
}

// Paused reports whether operators have paused the handler under any of its keys, so that a pause from before a rename
// stays in force. It returns what the last heartbeat, or a later TakePaused, has read (contract 5.13).
func (p *Processor) Paused(h *handler.Handler) bool {
	p.pauseMu.Lock()
	defer p.pauseMu.Unlock()
	return p.paused[h.Key()] || slices.ContainsFunc(h.LegacyKeys(), func(key string) bool { return p.paused[key] })
}

// TakePaused reads which handlers operators have paused, and applies it without waiting for the
// next heartbeat (contract 5.13).
func (p *Processor) TakePaused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	keys, err := p.store.Paused(ctx)
	if err == nil {
		p.setPaused(keys)
	}
	return err
}
