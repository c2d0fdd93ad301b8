package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/synchronous"
)

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

// reAcceptRequestedUntilStopped accepts, at intervals, the rejected messages again that another process
// has requested.
func (e *Engine) reAcceptRequestedUntilStopped(ctx context.Context) {
	failing := condition.New(e.log, e.cfg.Clock, zap.WarnLevel, "reading requests to accept rejected messages again",
		"they wait")
	for routine.Sleep(ctx, e.cfg.Processor.HeartbeatInterval) {
		err := routine.Protect("accepting rejected messages again", func() error {
			return e.ops.ReAcceptRequested(ctx, e.cfg.channelNames())
		})
		if err == nil {
			failing.End(nil)
		} else if ctx.Err() == nil {
			failing.Begin(nil, err)
		}
	}
}
