package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// NewOps makes an API to inspect and operate this inbox. It has the inbox's tables, clock, StatementTimeout and
// redaction hook, and the actions that only this process can do; the option Ops, and then configure, may change the
// options.
func (e *Engine) NewOps(configure ...func(o *ops.Options)) (*ops.Ops, error) {
	first := func(o *ops.Options) {
		o.Naming, o.Clock, o.Live, o.Sealer = e.cfg.Naming, e.cfg.Clock, live{e}, e.cfg.Sealer
		o.PortableSQL = e.cfg.PortableSQL
		o.StatementTimeout = e.cfg.Processor.StatementTimeout
	}
	// The inbox's hook is last set but first to run, so that no option removes it.
	last := func(o *ops.Options) { o.Redact = e.cfg.Redactor.Then(o.Redact).Hook() }
	return ops.New(e.cfg.DB, slices.Concat([]func(*ops.Options){first, e.cfg.Ops}, configure,
		[]func(*ops.Options){last})...)
}

// live gives operators the actions that only the running application can do.
type live struct{ e *Engine }

func (l live) AcceptTx(ctx context.Context, tx *gorm.DB, m handler.RawMessage) (ops.Accepted, func(), error) {
	if err := l.e.tables.checkTx(ctx, tx); err != nil {
		return ops.Accepted{}, nil, err
	}
	receipt, err := l.e.acceptor.AcceptTx(ctx, tx, m)
	if err != nil {
		return ops.Accepted{}, nil, badInput(err)
	}
	return acceptedOf(receipt.Results)[0], receipt.Wake, nil
}

func (l live) AcceptRejected(
	ctx context.Context, id string, begun func(context.Context) error, audit models.Audit,
) ([]ops.Accepted, error) {
	if err := l.e.tables.ready(ctx); err != nil {
		return nil, err
	}
	results, err := l.e.acceptor.AcceptRejectedBy(ctx, id, begun, &audit)
	switch {
	case errors.Is(err, acceptor.ErrRejectedNotFound):
		return nil, fmt.Errorf("%w: %w", ops.ErrNotFound, err)
	case errors.Is(err, acceptor.ErrRunning), errors.Is(err, idempotent.ErrInProgress):
		return nil, fmt.Errorf("%w: %w", ops.ErrProcessing, err)
	case errors.As(err, new(*synchronous.PausedError)):
		return nil, fmt.Errorf("%w: %w", ops.ErrPaused, err)
	}
	if err != nil && !errors.As(err, new(*handler.StillBadError)) {
		err = badInput(err)
	}
	return acceptedOf(results), err
}

// badInput marks an error in the message as the operator's, to distinguish it from the database's errors. So is one
// that says that this process cannot open the message.
func badInput(err error) error {
	if errors.As(err, new(*acceptor.InvalidError)) || errors.As(err, new(*sealing.MissingError)) {
		return fmt.Errorf("%w: %w", ops.ErrBadInput, err)
	}
	return err
}

func acceptedOf(results []acceptor.Result) []ops.Accepted {
	accepted := make([]ops.Accepted, len(results))
	for i, r := range results {
		accepted[i] = ops.Accepted{MessageID: r.MessageID, Outcome: r.Outcome, Handlers: r.Handlers}
	}
	return accepted
}

// ReadAgain reads by a consumer of its own, which joins no group.
func (l live) ReadAgain(ctx context.Context, r envelope.ReadAgain) (result envelope.ReadAgainResult, err error) {
	e := l.e
	i := slices.IndexFunc(e.cfg.Channels, func(c Channel) bool { return c.Name == r.Channel && c.Kafka != nil })
	if i < 0 {
		return result, fmt.Errorf("%w: this process consumes no channel %q from Kafka", ops.ErrBadInput, r.Channel)
	}
	c := e.cfg.Channels[i]
	if c.Mode != Inbox {
		return result, fmt.Errorf("%w: channel %q is %s, it stores no messages to compare with and its handlers would run again",
			ops.ErrBadInput, c.Name, c.Mode)
	}
	if !slices.Contains(c.Kafka.Topics, r.Topic) {
		return result, fmt.Errorf("%w: topic %q is not one of channel %q, but these are: %q", ops.ErrBadInput, r.Topic, c.Name,
			c.Kafka.Topics)
	}
	if _, running := e.reading.LoadOrStore(c.Name, true); running {
		return result, fmt.Errorf("%w: channel %q is read again already", ops.ErrProcessing, c.Name)
	}
	defer e.reading.Delete(c.Name)
	if err := e.tables.ready(ctx); err != nil {
		return result, err
	}
	consumer, err := e.newConsumer(c)
	if err != nil {
		return result, err
	}
	accept := func(ctx context.Context, records []envelope.Received) ([]envelope.Result, error) {
		return e.acceptor.AcceptAgain(ctx, c.Name, records, r.DryRun)
	}
	result, err = consumer.ReadAgain(ctx, r, accept)
	if errors.Is(err, kafkaconsumer.ErrRange) {
		err = fmt.Errorf("%w: %w", ops.ErrBadInput, err)
	}
	return result, err
}

func (l live) Cleanup(ctx context.Context) (handler.Deleted, error) { return l.e.Cleanup(ctx) }

func (l live) Subscription(key string) (ops.Subscription, error) {
	s, known := l.e.cfg.Registry.Subscription(key)
	if !known {
		return ops.Subscription{}, fmt.Errorf("handler key %q: %w", key, ops.ErrNotFound)
	}
	namespaces := l.e.cfg.sharedNamespaces()
	of := func(channel string) string { return cmp.Or(namespaces[channel], channel) }
	return ops.Subscription{Handler: s.Handler, Channel: s.Channel, Type: s.Type, Namespace: of(s.Channel),
		Shared: slices.ContainsFunc(l.e.cfg.channelNames(), func(name string) bool {
			return name != s.Channel && of(name) == of(s.Channel)
		}),
		Retention: cmp.Or(s.Handler.Retention(), l.e.cfg.Cleanup.Retention),
		Stored:    !s.Synchronous}, nil
}

func (l live) Running(handlerKey, messageID string, attempt int) (ranFor time.Duration, cancel func(by string)) {
	call, running := l.e.running.Find(handlerKey, messageID, attempt)
	if !running {
		return 0, nil
	}
	return l.e.cfg.Clock.Now().Sub(call.Since), call.Cancel
}

func (l live) Ready(ctx context.Context) error { return l.e.tables.ready(ctx) }

func (l live) Wake(handlerKeys ...string) {
	var primary []string
	for _, key := range handlerKeys {
		if h, known := l.e.cfg.Registry.Lookup(key); known {
			primary = append(primary, h.Key())
		}
	}
	if len(primary) > 0 { // without keys Wake would wake all
		l.e.processor.Wake(primary...)
	}
}

func (l live) Ended() (time.Time, map[string]ops.Ended) { return l.e.sampler.endedByHandler() }

func (l live) TakePaused(ctx context.Context) error { return l.e.processor.TakePaused(ctx) }

// again tracks the runs of rejected records of Inline and Direct channels that operators have asked for, so that a stop
// ends them. Its zero value is ready.
type again struct {
	mu       sync.Mutex
	stopping bool
	running  map[*rerun]bool
}

// rerun is one such run.
type rerun struct {
	once   sync.Once     // closes stop
	stop   chan struct{} // closed: begin nothing new
	cancel context.CancelFunc
	ended  chan struct{}
}

// errStopping means that a rejected record was not run, or not to its end, because the inbox stops.
var errStopping = errors.New("the inbox is stopping")

func (a *again) begin(ctx context.Context) (context.Context, *rerun, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &rerun{stop: make(chan struct{}), cancel: cancel, ended: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopping {
		cancel()
		return nil, nil, errStopping
	}
	if a.running == nil {
		a.running = map[*rerun]bool{}
	}
	a.running[r] = true
	return ctx, r, nil
}

func (a *again) end(r *rerun) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.cancel()
	close(r.ended)
	delete(a.running, r)
}

// stop lets the running attempts end, then cancels them, within ctx. Nothing begins until reopen is called.
func (a *again) stop(ctx context.Context) error {
	a.mu.Lock()
	a.stopping = true
	var all []*rerun
	for r := range a.running {
		r.once.Do(func() { close(r.stop) }) // an earlier stop may have timed out
		all = append(all, r)
	}
	a.mu.Unlock()
	soft, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ends := ctx.Deadline(); ends {
		soft, cancel = context.WithTimeout(ctx, time.Until(deadline)*3/4)
	}
	defer cancel()
	for _, r := range all {
		select {
		case <-r.ended:
		case <-soft.Done():
		}
	}
	for _, r := range all {
		r.cancel()
		select {
		case <-r.ended:
		case <-ctx.Done():
			return errors.New("a rejected record is still being run again")
		}
	}
	return nil
}

// reopen lets records run again after a stop.
func (a *again) reopen() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = false
}

// runAgain runs the handlers of a rejected record of an Inline or Direct channel again, see acceptor.Config.
func (e *Engine) runAgain(
	ctx context.Context, channel string, received envelope.Received,
) (results []acceptor.Result, bad, err error) {
	if err := e.processor.TakePaused(ctx); err != nil { // a process that is not started has not read it
		return nil, nil, err
	}
	running, r, err := e.again.begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer e.again.end(r)
	ran, err := e.runners[channel].RunAgain(running, r.stop, received)
	var failed *synchronous.FailedError
	switch {
	case errors.As(err, &failed):
		return nil, failed, nil
	case errors.Is(err, envelope.ErrInterrupted) && ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case errors.Is(err, envelope.ErrInterrupted):
		return nil, nil, errStopping
	}
	return ranResults(ran), nil, err
}

func ranResults(ran []synchronous.Ran) []acceptor.Result {
	results := make([]acceptor.Result, len(ran))
	for i, r := range ran {
		results[i] = acceptor.Result{MessageID: r.MessageID, Outcome: handler.OutcomeProcessed, Handlers: r.Handlers}
		if r.Routed == 0 {
			results[i].Outcome = handler.OutcomeUnrouted
		}
	}
	return results
}

// reAcceptRequestedUntilStopped accepts, at intervals, the rejected messages again that another process has requested.
func (e *Engine) reAcceptRequestedUntilStopped(ctx context.Context) {
	failing := condition.New(e.log, e.cfg.Clock, zap.WarnLevel, "reading requests to accept rejected messages again",
		"they wait")
	repeat(ctx, e.cfg.Processor.HeartbeatInterval, failing, "accepting rejected messages again", func() error {
		return e.ops.ReAcceptRequested(ctx, e.cfg.channelNames())
	})
}

// cancelRequestedUntilStopped cancels, at intervals, the calls and requests of this process that operators want to end.
func (e *Engine) cancelRequestedUntilStopped(ctx context.Context) {
	e.serveUntilStopped(ctx, "reading requests to cancel", nil, ops.ActionCancel, ops.ActionCancelRequest)
}

// serveRequestedUntilStopped does, at intervals, what operators have requested of any process that can. One that takes
// long keeps the others waiting, but no cancel.
func (e *Engine) serveRequestedUntilStopped(ctx context.Context) {
	e.serveUntilStopped(ctx, "reading requests to workers", e.cfg.channelNames(), ops.ActionBackfill, ops.ActionCleanup,
		ops.ActionReplay)
}

// readAgainRequestedUntilStopped reads topics again, at intervals, that operators have requested of a process which
// consumes their channel. It may take hours.
func (e *Engine) readAgainRequestedUntilStopped(ctx context.Context) {
	var consumed []string
	for _, c := range e.cfg.Channels {
		if c.Kafka != nil {
			consumed = append(consumed, c.Name)
		}
	}
	e.serveUntilStopped(ctx, "reading requests to read topics again", consumed, ops.ActionReadAgain)
}

func (e *Engine) serveUntilStopped(ctx context.Context, what string, channels []string, kinds ...ops.Action) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	by := fmt.Sprintf("process %d on %s", os.Getpid(), host)
	failing := condition.New(e.log, e.cfg.Clock, zap.WarnLevel, what, "they wait")
	repeat(ctx, e.cfg.Processor.HeartbeatInterval, failing, "carrying out requests", func() error {
		return e.ops.ServeRequests(ctx, by, channels, kinds...)
	})
}

// repeat does work at intervals until ctx ends. failing is the condition that it fails, and what names it.
func repeat(ctx context.Context, interval time.Duration, failing *condition.Condition, what string, work func() error) {
	for routine.Sleep(ctx, interval) {
		err := routine.Protect(what, work)
		if err == nil {
			failing.End(nil)
		} else if ctx.Err() == nil {
			failing.Begin(nil, err)
		}
	}
}
