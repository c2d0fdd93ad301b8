// Package processor runs handlers: it claims due statuses, runs them on a
// bounded pool, stores their results, and recovers what other workers left
// behind (contract 5). One file per service: claim, attempt, transaction,
// completer, session (heartbeat and fencing), sweeper; loop ties them together.
package processor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// Processor is one inbox's worker. It is safe for concurrent use.
type Processor struct {
	opts     Options
	store    store.Store
	registry *handler.Registry
	clock    clock.Clock
	log      *zap.Logger
	counters *telemetry.Counters
	hooks    handler.Hooks

	policies  map[*handler.Handler]*policy
	runner    *runner
	lanes     *lanes
	wakeup    *wakeup
	health    *health
	claimLog  *stateLog
	beatLog   *stateLog
	sweepLog  *stateLog
	storeLog  *stateLog
	loopLog   *stateLog
	lockLog   *stateLog
	listenLog *stateLog
	released  atomic.Bool // claims, since the last stop

	loop atomic.Pointer[loop] // the one that accepts may hand off to; nil while there is none

	lockFreed chan struct{} // a ProcessPending of this process has given the lock up

	pauseMu sync.Mutex
	paused  map[string]bool

	lifecycle sync.Mutex // held by Start and Stop throughout
	mu        sync.Mutex
	now       *activity // nil unless started
}

// Config is what a Processor works with; Hooks, Middleware and Backoff may be
// left out.
type Config struct {
	// DB is where handlers get their sessions and transactions from.
	DB       *gorm.DB
	Store    store.Store
	Registry *handler.Registry
	Options  Options
	Clock    clock.Clock
	Logger   *zap.Logger
	Counters *telemetry.Counters
	Hooks    handler.Hooks
	// Middleware runs around every handler's calls, outside its own.
	Middleware []handler.Middleware
	// Backoff replaces the exponential backoff of handlers without one of
	// their own, see handler.Backoff.
	Backoff func(errorCount int) time.Duration
}

// New makes a Processor. It fails only on invalid options, joined.
func New(cfg Config) (*Processor, error) {
	if problems := cfg.Options.Validate(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, h := range cfg.Registry.Handlers() {
		if h.Timeout() >= cfg.Options.StuckMessageThreshold {
			return nil, fmt.Errorf("handler %q: its Timeout is %s, allowed is less than StuckMessageThreshold (%s)", h.Key(), h.Timeout(), cfg.Options.StuckMessageThreshold)
		}
	}
	p := &Processor{
		opts: cfg.Options, store: cfg.Store, registry: cfg.Registry, clock: cfg.Clock, log: cfg.Logger, counters: cfg.Counters, hooks: cfg.Hooks,
		policies: map[*handler.Handler]*policy{}, wakeup: newWakeup(), paused: map[string]bool{},
		claimLog: newStateLog(cfg.Logger, "claiming"), beatLog: newStateLog(cfg.Logger, "heartbeat"), sweepLog: newStateLog(cfg.Logger, "recovery"),
		storeLog: newStateLog(cfg.Logger, "storing results"), loopLog: newStateLog(cfg.Logger, "processing loop"), lockLog: newStateLog(cfg.Logger, "lock"),
		listenLog: newStateLog(cfg.Logger, "listening"),
		lockFreed: make(chan struct{}, 1),
	}
	if p.opts.Mode == "" {
		p.opts.Mode = defaultMode(cfg.DB.Dialector.Name())
	}
	p.health = &health{logs: []*stateLog{p.claimLog, p.beatLog, p.sweepLog, p.storeLog, p.loopLog, p.lockLog, p.listenLog}}
	for _, h := range cfg.Registry.Handlers() {
		p.policies[h] = newPolicy(h, cfg.Options, cfg.Backoff, p.wakeup.wake)
	}
	p.lanes = &lanes{store: cfg.Store, registry: cfg.Registry, policies: p.policies, timeout: cfg.Options.StatementTimeout, now: cfg.Clock.Now,
		log: cfg.Logger, wake: p.wakeup.wake}
	p.runner = &runner{db: cfg.DB, store: cfg.Store, now: cfg.Clock.Now, middleware: cfg.Middleware, statementTimeout: cfg.Options.StatementTimeout,
		maxRetryDelay: cfg.Options.MaxRetryDelay, stuckGrace: cfg.Options.StuckHandlerGrace}
	return p, nil
}

// Wake makes the processor look for due statuses now, of these handler keys,
// or of all without arguments. It never blocks and does nothing while the
// processor is not started (contract 4.7).
func (p *Processor) Wake(handlerKeys ...string) { p.wakeup.wake(handlerKeys...) }

func (p *Processor) newCompleter(h *held) *completer {
	return newCompleter(p.store, p.opts, p.clock.Now, p.storeLog, p.lanes, func(ctx context.Context, r result, applied bool) {
		h.drop(r.claim)
		p.settled(ctx, r, applied)
	}, p.wakeup.ring)
}

func (p *Processor) newClaimer(h *held, settle func(result)) *claimer {
	return &claimer{store: p.store, registry: p.registry, policies: p.policies, opts: p.opts, now: p.clock.Now, held: h, lanes: p.lanes, settle: settle}
}

// resultsOf judges those attempts of a group that have come to their end, and
// tells the circuit breaker.
func (p *Processor) resultsOf(g *group) []result {
	results := make([]result, 0, len(g.attempts))
	for _, a := range g.attempts {
		if !a.again {
			results = append(results, p.resultOf(a))
		}
	}
	g.note(results)
	return results
}

// resultOf judges a finished attempt. The handler's error is the
// application's code, too: a nil pointer in an error's clothes panics when it
// is asked for its text, and that must not end the process.
func (p *Processor) resultOf(a *attempt) (r result) {
	judge := func(err error) result {
		return result{attempt: a, verdict: judge(a, err, a.cause, p.clock.Now())}
	}
	defer func() {
		if v := recover(); v != nil {
			a.err = &PanicError{Value: fmt.Sprintf("the handler's error: %v", v), Stack: debug.Stack()}
			r = judge(a.err)
		}
	}()
	if a.err != nil {
		_ = a.err.Error()
	}
	return judge(a.err)
}

func (p *Processor) reportOverdue(g *group) {
	p.log.Error("inbox: handler ignores its cancelled context", zap.String("handler_key", g.handler.Key()),
		zap.String("message_id", g.attempts[0].claim.MessageID), zap.Int("messages", len(g.attempts)))
}

// settled counts a result that has reached the database, or that turned out
// to be stale, and tells the hooks.
func (p *Processor) settled(ctx context.Context, r result, applied bool) {
	if !applied {
		p.counters.Fenced.Add(1)
		p.log.Warn("inbox: result of a stale claim changed nothing", r.fields(zap.String("outcome", r.outcome), zap.NamedError("handler_error", r.failure))...)
		return
	}
	switch {
	case !r.next.IsZero():
		p.wakeup.at(r.next)
	case r.outcome == released: // due now, perhaps for a later session of this very worker
		p.released.Store(true)
		p.wakeup.wake(r.handler.Key())
	}
	switch r.outcome {
	case completed:
		p.counters.Processed.Add(1)
	case failed:
		p.counters.Failed.Add(1)
		p.log.Warn("inbox: attempt failed", r.fields(zap.Time("next_attempt_at", r.next), zap.Error(r.failure))...)
	case poisoned:
		p.counters.Failed.Add(1)
		p.counters.Poisoned.Add(1)
		p.log.Error("inbox: message poisoned", r.fields(zap.Error(r.failure))...)
	case snoozed:
		p.counters.Snoozed.Add(1)
	case released:
		p.counters.Released.Add(1)
	case superseded:
		p.counters.Superseded.Add(1)
		return
	}
	p.tell(ctx, r)
}

// fields name the attempt in the log.
func (r *result) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("handler_key", r.claim.HandlerKey), zap.String("message_id", r.claim.MessageID),
		zap.Int("attempt", r.claim.ErrorCount+r.claim.AbandonedCount+1)}, more...)
}

// tell calls the hooks; ctx ends when a stop can wait for them no longer.
func (p *Processor) tell(ctx context.Context, r result) {
	if p.hooks.OnAttempt == nil && p.hooks.OnPoisoned == nil {
		return
	}
	e := handler.AttemptEvent{MessageID: r.claim.MessageID, HandlerKey: r.claim.HandlerKey, Attempt: r.claim.ErrorCount + r.claim.AbandonedCount + 1,
		Outcome: r.outcome, Err: r.failure, Duration: r.duration, NextAttemptAt: r.next}
	if r.claim.Message != nil {
		e.Type = r.claim.Message.Type
	}
	if err := handler.CallHook(ctx, p.hooks.OnAttempt, e); err != nil {
		p.log.Error("inbox hook OnAttempt failed", zap.String("message_id", e.MessageID), zap.Error(err))
	}
	if r.outcome != poisoned {
		return
	}
	if err := handler.CallHook(ctx, p.hooks.OnPoisoned, e); err != nil {
		p.log.Error("inbox hook OnPoisoned failed", zap.String("message_id", e.MessageID), zap.Error(err))
	}
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
		p.wakeup.ring()
	}
}

func (p *Processor) isPaused(h *handler.Handler) bool {
	p.pauseMu.Lock()
	defer p.pauseMu.Unlock()
	// By any of its keys: what was paused before a rename stays so.
	return p.paused[h.Key()] || slices.ContainsFunc(h.LegacyKeys(), func(key string) bool { return p.paused[key] })
}

// TakePaused obeys what operators have paused by now, which otherwise is taken
// over with the next heartbeat (contract 5.13).
func (p *Processor) TakePaused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	keys, err := p.store.Paused(ctx)
	if err == nil {
		p.setPaused(keys)
	}
	return err
}

// protect turns a panic of ours into an error.
func protect(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	f()
	return nil
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
