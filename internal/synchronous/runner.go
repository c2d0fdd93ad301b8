// Package synchronous runs the handlers of a transport's record while the transport waits. There are no status rows;
// failures are retried while the transport waits (contract 7.6). An Inline channel remembers which handler has
// processed which message, a Direct channel does not.
package synchronous

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Config is what a Runner works with. Memories, Paused, Running, Backoff, Middleware, Hooks, Instruments are optional.
type Config struct {
	Channel  string
	Registry *registry.Registry
	// DB is the database in which handlers get their sessions and transactions.
	DB *gorm.DB
	// Memories remember the messages that the handlers of an Inline channel have processed.
	Memories map[*handler.Handler]*Memory
	// Paused reports whether operators have paused a handler; nil pauses none. The partition waits for a paused handler
	// to be resumed (contract 5.13).
	Paused func(*handler.Handler) bool
	// Running tracks the running calls.
	Running *attempt.Running

	// MaxRetries is after how many failed attempts a handler gives up, unless it has its own; 0 and 1 mean no retry.
	MaxRetries int
	// Concurrency is how many handlers run at once; at least 1.
	Concurrency int
	// HandlerTimeout, MaxRetryDelay, StatementTimeout and StuckHandlerGrace are the inbox's.
	HandlerTimeout, MaxRetryDelay, StatementTimeout, StuckHandlerGrace time.Duration
	// TxIsolation is the isolation level of handlers' transactions; sql.LevelDefault means READ COMMITTED.
	TxIsolation sql.IsolationLevel
	// Backoff replaces the exponential backoff, see handler.Backoff.
	Backoff    func(errorCount int) time.Duration
	Middleware []handler.Middleware
	Hooks      handler.Hooks
	Clock      clock.Clock
	Logger     *zap.Logger
	Counters   *telemetry.Counters
	// Instruments measure and trace; nil disables both.
	Instruments *telemetry.Instruments
}

// Runner runs the handlers of one channel. It is safe for concurrent use, by one goroutine per partition.
type Runner struct {
	cfg      Config
	log      *zap.Logger
	policies map[*handler.Handler]attempt.Policy
	attempts attempt.Runner
	reports  attempt.Reports
	// lateIDs says that the handlers' memories judge messages without an ID. Otherwise such a message makes its record
	// bad before any handler runs. A message whose ID is unusable always does.
	lateIDs bool
	slots   chan struct{}
	stuck   *stuck
	outage  *condition.Condition
	failing failing
	heldAt  atomic.Int64 // when a partition last waited for a paused handler, by the injected clock, in nanoseconds
}

// New returns a Runner for the handlers that the registry has for the channel.
func New(cfg Config) *Runner {
	r := &Runner{cfg: cfg, log: cfg.Logger.With(zap.String(telemetry.FieldChannel, cfg.Channel)),
		policies: map[*handler.Handler]attempt.Policy{},
		slots:    make(chan struct{}, cfg.Concurrency), stuck: newStuck(cfg.Concurrency, cfg.StuckHandlerGrace),
		failing: failing{tasks: map[*task]health.FailingHandler{}}}
	r.outage = condition.New(r.log, cfg.Clock, zap.WarnLevel, "database or marker store",
		"attempts are retried until it can be used")
	r.attempts = attempt.Runner{DB: cfg.DB, StatementTimeout: cfg.StatementTimeout, TxIsolation: cfg.TxIsolation,
		StuckGrace: cfg.StuckHandlerGrace, Middleware: cfg.Middleware, Running: cfg.Running}
	r.reports = attempt.Reports{Counters: cfg.Counters, Instruments: cfg.Instruments, Hooks: cfg.Hooks, Log: r.log}
	for _, m := range cfg.Memories {
		r.lateIDs = r.lateIDs || m.id.FindsIDs()
	}
	for h := range cfg.Registry.Handlers() {
		r.policies[h] = attempt.NewPolicy(h, cfg.HandlerTimeout, cfg.MaxRetries, cfg.MaxRetryDelay, cfg.Backoff)
	}
	return r
}

// pausedPoll is how often a partition checks whether its paused handler was resumed. The check reads memory only: the
// heartbeat reads the database.
const pausedPoll = 100 * time.Millisecond

// FailedError says that a record is bad because handlers gave up some of its messages. All other handlers of the record
// have completed.
type FailedError struct {
	Failures []Failure
}

// Failure is one handler's last failure with one message.
type Failure struct {
	MessageID  string
	HandlerKey string
	Attempts   int
	Err        error
}

// namedFailures bounds how many failures an error text names: a record may hold ten thousand events.
const namedFailures = 20

// Error names handlers, messages and failures, up to 20.
func (e *FailedError) Error() string {
	parts := make([]string, 0, namedFailures+1)
	for _, f := range e.Failures[:min(len(e.Failures), namedFailures)] {
		parts = append(parts, fmt.Sprintf("handler %q gave up message %q after %d attempts: %s", f.HandlerKey, f.MessageID,
			f.Attempts, f.Err))
	}
	if more := len(e.Failures) - namedFailures; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more were given up", more))
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns the failures' causes.
func (e *FailedError) Unwrap() []error {
	causes := make([]error, len(e.Failures))
	for i, f := range e.Failures {
		causes[i] = f.Err
	}
	return causes
}

// Stuck returns the number of calls that ignore their cancelled context, by handler key, including calls that were
// given up (contract 5.4).
func (r *Runner) Stuck() map[string]int { return r.stuck.counts() }

// Outage returns why attempts cannot be made or finished at present through no fault of the handlers: the database or
// the store of markers is unusable. It is nil if no task has met an outage, or if the last task that met one has made
// progress (contract 7.8).
func (r *Runner) Outage() error {
	_, err := r.outage.Current()
	return err
}

// ExcusedUntil returns the time before which no progress was possible: when the last outage ended (now, while one
// lasts), or when a partition last waited for a paused handler. It is zero if neither has happened.
func (r *Runner) ExcusedUntil() time.Time {
	until := r.outage.Until()
	if held := r.heldAt.Load(); held > 0 && time.Unix(0, held).After(until) {
		return time.Unix(0, held).UTC()
	}
	return until
}

// Unrouted returns the messages of a record that no handler takes.
func (r *Runner) Unrouted(received envelope.Received) []handler.RawMessage {
	var unrouted []handler.RawMessage
	for _, m := range received.Messages {
		if len(r.cfg.Registry.Route(r.cfg.Channel, m.Type)) == 0 {
			unrouted = append(unrouted, m)
		}
	}
	return unrouted
}

// Deliver runs all handlers of the record's messages, one after the other, until each has ended. A handler that fails
// is tried again after its backoff, without those that have succeeded. It returns
//
//   - nil if all have succeeded,
//   - a *FailedError if all have ended and some gave up,
//   - the first message's error if that message's ID is unusable,
//   - envelope.ErrInterrupted otherwise.
//
// It skips messages that no handler takes.
//
// It waits for a paused handler without charging it, and runs the record's other handlers meanwhile. Once stopping is
// closed the running handler may finish, but Deliver waits for no backoff and no slot, and begins nothing new: not even
// the record's handlers that have not run yet. Once ctx ends, the running handler is cancelled, too.
func (r *Runner) Deliver(ctx context.Context, stopping <-chan struct{}, received envelope.Received) error {
	tasks, err := r.tasks(received)
	if err != nil {
		return err
	}
	defer r.forget(tasks)
	at := partition{received.Record.Topic, received.Record.Partition}
	for {
		open := false
		var next time.Time
		for _, t := range tasks {
			if !t.done && !time.Now().Before(t.due) {
				if r.cfg.Paused != nil && r.cfg.Paused(t.Handler) {
					t.due = time.Now().Add(pausedPoll)
					r.heldAt.Store(r.cfg.Clock.Now().UnixNano())
				} else if err := r.try(ctx, stopping, at, t); err != nil {
					return err
				}
			}
			if !t.done && (!open || t.due.Before(next)) {
				open, next = true, t.due
			}
		}
		if !open {
			return failures(tasks)
		}
		if !wait(ctx, stopping, time.Until(next)) {
			return envelope.ErrInterrupted
		}
	}
}

// forget removes the tasks from the outage and from the failing ones. Their processing here has ended, which does not
// mean that an outage they met is over.
func (r *Runner) forget(tasks []*task) {
	for _, t := range tasks {
		r.failing.forget(t)
		r.outage.Forget(t)
	}
	r.outage.Clear()
}

// task is one handler's work on one message of a record.
type task struct {
	attempt.Attempt

	// received is the message as it was delivered. Each call gets its own copy, and the ID by which the handler
	// remembers the message is computed from received again for each attempt.
	received handler.Delivery
	cut      routine.Backoff // after attempts that charged nothing
	due      time.Time
	done     bool
	failure  error // the error with which the message was given up
	message  int   // index in the record
	again    bool  // runs again for an operator, see RunAgain
	known    bool  // the handler has processed the message before
}

// tasks returns the tasks of a record, in the order of its messages and of the handlers' declaration.
func (r *Runner) tasks(received envelope.Received) ([]*task, error) {
	var tasks []*task
	now := r.cfg.Clock.Now()
	for i, m := range received.Messages {
		handlers := r.cfg.Registry.Route(r.cfg.Channel, m.Type)
		if len(handlers) > 0 { // routing comes before ID checks
			if err := r.unusable(m); err != nil {
				return nil, err
			}
		}
		for _, h := range handlers {
			policy := r.policies[h]
			received := handler.Delivery{Content: m.Content, Metadata: handler.Metadata{
				ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType, Transport: m.Transport,
				Properties: m.Properties, OrderingKey: m.OrderingKey, ReceivedAt: now,
				OccurredAt: properties.OccurredAt(m.Properties), HandlerKey: h.Key(),
			}}
			t := &task{received: received, message: i, cut: routine.Backoff{First: 50 * time.Millisecond, Max: 5 * time.Second},
				Attempt: attempt.Attempt{Handler: h, Policy: policy, Timeout: policy.Timeout}}
			t.SetDelivery(received)
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

// unusable returns the error if a message's ID is unusable.
func (r *Runner) unusable(m handler.RawMessage) error {
	missing := errors.Is(m.IDErr, envelope.ErrMissingID)
	if m.IDErr == nil || missing && r.lateIDs {
		return nil
	}
	if missing {
		r.cfg.Counters.OfChannel(telemetry.MissingKey, r.cfg.Channel, 1)
	}
	return fmt.Errorf("message %q: %w", m.ID, m.IDErr)
}

func failures(tasks []*task) error {
	var failed FailedError
	for _, t := range tasks {
		if t.failure != nil {
			failed.Failures = append(failed.Failures, Failure{MessageID: t.Delivery().ID, HandlerKey: t.Handler.Key(),
				Attempts: t.Delivery().Attempt, Err: t.failure})
		}
	}
	if len(failed.Failures) == 0 {
		return nil
	}
	return &failed
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wait waits for d. It returns false as soon as stopping is closed or ctx ends.
func wait(ctx context.Context, stopping <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-stopping:
	case <-ctx.Done():
	}
	return false
}

// failing tracks the tasks that have failed and are not done.
type failing struct {
	mu    sync.Mutex
	tasks map[*task]health.FailingHandler
}

func (f *failing) set(t *task, now health.FailingHandler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, known := f.tasks[t]; known {
		now.Since = before.Since
	}
	f.tasks[t] = now
}

func (f *failing) forget(t *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tasks, t)
}

// Failing returns the handlers that fail at present, those that have failed for longest first.
func (r *Runner) Failing() []health.FailingHandler {
	r.failing.mu.Lock()
	defer r.failing.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.failing.tasks), func(a, b health.FailingHandler) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition),
			cmp.Compare(a.HandlerKey, b.HandlerKey), cmp.Compare(a.MessageID, b.MessageID))
	})
}

// Ran is the result of one message of a record that ran again.
type Ran struct {
	MessageID string
	// Routed is how many handlers take the message. Handlers is how many ran, not having processed it before.
	Routed, Handlers int
}

// PausedError says that a record does not run again because operators have paused one of its handlers.
type PausedError struct{ HandlerKey string }

func (e *PausedError) Error() string {
	return fmt.Sprintf("handler %q is paused: resume it first", e.HandlerKey)
}

// RunAgain runs the handlers of a rejected record's messages again, because an operator asks for it (contract 7.4). Of
// an Inline channel it leaves out the handlers that have processed their message before, also where a duplicate is an
// error. Each handler has one attempt. A handler that fails, or is not ready, gives up the message again. The result
// has an element for each message, in their order. The error is
//
//   - a *PausedError if a handler is paused: none has run,
//   - a *FailedError if all handlers have ended and some gave up,
//   - the first message's error if that message's ID is unusable,
//   - the error that kept a handler from running or ending, such as an outage: nothing is charged,
//   - envelope.ErrInterrupted if ctx ended or stopping was closed before all had ended.
//
// The running handler is cancelled when ctx ends, and is not waited for if it ignores that.
func (r *Runner) RunAgain(ctx context.Context, stopping <-chan struct{}, received envelope.Received) ([]Ran, error) {
	tasks, err := r.tasks(received)
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if r.cfg.Paused != nil && r.cfg.Paused(t.Handler) {
			return nil, &PausedError{HandlerKey: t.Handler.Key()}
		}
	}
	defer r.forget(tasks)
	at := partition{received.Record.Topic, received.Record.Partition}
	var open error
	for _, t := range tasks {
		t.again, t.Policy.MaxRetries = true, 1
		if err := r.try(ctx, stopping, at, t); err != nil {
			return nil, err
		}
		if !t.done && open == nil {
			open = fmt.Errorf("handler %q of message %q: %w", t.Handler.Key(), t.Delivery().ID, t.Err)
		}
	}
	if err := failures(tasks); err != nil {
		return nil, err
	}
	if open != nil {
		return nil, open
	}
	return ran(received.Messages, tasks), nil
}

// ran sums up the tasks, which are in the order of the messages.
func ran(messages []handler.RawMessage, tasks []*task) []Ran {
	all := make([]Ran, len(messages))
	for i, m := range messages {
		all[i].MessageID = m.ID
	}
	for _, t := range tasks {
		of := &all[t.message]
		of.MessageID = t.Delivery().ID // the handler's memory may know it where the record does not
		if of.Routed++; !t.known {
			of.Handlers++
		}
	}
	return all
}
