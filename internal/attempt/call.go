package attempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// ErrStuck is the failure of an attempt whose handler ignored its cancelled context until we gave it up. The handler
// may still be running.
var ErrStuck = errors.New("handler ignores its cancelled context")

var errGoexit = errors.New("handler ended its goroutine (runtime.Goexit, or FailNow of a test)")

// ErrTimeout is the cause of a context that ended because the attempt's time was over.
var ErrTimeout = errors.New("handler timeout")

// Cancelled is the cause of a context that an operator has ended.
type Cancelled struct{ By string }

func (e *Cancelled) Error() string { return "cancelled by operator " + e.By }

// limited applies an attempt's timeout to ctx; 0 means no limit. The caller must call cancel with nil once the call has
// ended. Called before that, cancel ends the context for another cause. Each call of a handler pays for what this
// allocates, so there is one function for both.
func limited(ctx context.Context, timeout time.Duration) (context.Context, context.CancelCauseFunc) {
	own, cancel := context.WithCancelCause(ctx)
	if timeout <= 0 {
		return own, cancel
	}
	within, stop := context.WithTimeoutCause(own, timeout, ErrTimeout)
	return within, func(cause error) { cancel(cause); stop() }
}

// patience says what to do about a handler that ignores its cancelled context. The functions are called from the call's
// goroutines.
type patience struct {
	// Grace is how long to wait for the handler once it is overdue.
	Grace time.Duration
	// GiveUp, if not nil, ends the grace early.
	GiveUp <-chan struct{}
	// Overdue is called when the handler has not returned a second after its context ended.
	Overdue func()
	// Returned is called when the handler returns after it was given up.
	Returned func()
}

// overdueTolerance is how long a handler may take to return after its context was cancelled. After that it is reported
// as ignoring its context.
const overdueTolerance = time.Second

// call runs the handler's code in a new goroutine, because Goexit, or a handler that never returns, would end or block
// ours. running, which may be nil, tracks the call until it returns. The results are in the order of the deliveries.
func call(ctx context.Context, cancel context.CancelCauseFunc, tx *gorm.DB, h *handler.Handler,
	outer []handler.Middleware, running *Running, p patience, deliveries ...handler.Delivery,
) []error {
	results := make(chan []error, 1)
	number := running.begin(h, deliveries, cancel)
	go func() {
		var errs []error
		defer func() {
			if v := recover(); v != nil {
				errs = slices.Repeat([]error{Recovered(v)}, len(deliveries))
			} else if errs == nil {
				errs = slices.Repeat([]error{errGoexit}, len(deliveries))
			}
			running.end(number)
			results <- errs
		}()
		errs = h.Run(ctx, tx, outer, deliveries...)
	}()
	select {
	case errs := <-results:
		return errs
	case <-ctx.Done():
	}
	timer := time.NewTimer(overdueTolerance)
	defer timer.Stop()
	select {
	case errs := <-results:
		return errs
	case <-timer.C:
		p.Overdue()
	}
	began, waited := time.Now(), p.Grace
	timer.Reset(p.Grace)
	select {
	case errs := <-results:
		return errs
	case <-timer.C:
	case <-p.GiveUp:
		waited = time.Since(began)
	}
	go func() { // ends when the handler returns
		<-results
		p.Returned()
	}()
	return slices.Repeat([]error{fmt.Errorf("%w for %s", ErrStuck, waited)}, len(deliveries))
}

// call runs the handler's code. The errors are in the order of the attempts. Cancel ends ctx.
func (r *Runner) call(ctx context.Context, cancel context.CancelCauseFunc, session, tx *gorm.DB, group []*Attempt,
	c Call) []error {
	if err := c.MayStart(ctx); err != nil {
		return slices.Repeat([]error{err}, len(group))
	}
	deliveries := slices.Grow(slices.Clip(group[0].delivery), len(group)-1)
	for _, a := range group[1:] {
		deliveries = append(deliveries, a.delivery...)
	}
	p := patience{Grace: r.StuckGrace, Overdue: c.Overdue, Returned: c.Returned}
	if c.Until != nil {
		p.GiveUp = c.Until.Done()
	}
	errs := call(handler.ContextWithDB(ctx, session), cancel, tx, group[0].Handler, r.Middleware, r.Running, p,
		deliveries...)
	for i, err := range errs {
		errs[i] = usable(err)
	}
	return errs
}

// usable returns err, or a failure in its place if err is unusable. An error is application code: a nil pointer stored
// as an error, for example, may panic in Error or Unwrap.
func usable(err error) (checked error) {
	defer func() {
		if v := recover(); v != nil {
			checked = Recovered(fmt.Sprintf("the handler's error: %v", v))
		}
	}()
	if err != nil {
		_ = err.Error()
		_ = isCut(err) || errors.Is(err, ErrStuck)
	}
	return err
}

// PanicError is the failure of an attempt during which the handler panicked, or other code that ran for it: a driver, a
// plugin, the application's clock. Its text, with the stack, becomes the last error.
type PanicError struct {
	Value any
	// Stack begins where the panic happened. It ends before the library's own frames, unless there are no others.
	Stack []byte
}

// Recovered returns the failure for a value that recover returned. Only a deferred function may call it, while the
// stack of the panic still exists.
func Recovered(value any) *PanicError { return &PanicError{Value: value, Stack: panicStack()} }

// Error returns the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler panicked: %v\n\n%s", e.Value, e.Stack)
}

// Trace returns the stack, for callers that keep it apart from the text.
func (e *PanicError) Trace() []byte { return e.Stack }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

const (
	maxFrames = 64
	// callers is the prefix of the functions that call handlers. Frames from there on say nothing about the application.
	callers = "github.com/gorm-inbox/inbox/handler."
)

// panicStack returns the frames of the current panic that belong to the application, or all frames below the panic if
// none does. The last error keeps 2,000 characters, and failure groups use the first frame. Frames of the runtime and
// of this library would push the application's frames out of both.
func panicStack() []byte {
	pcs := make([]uintptr, maxFrames)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	var all []runtime.Frame
	for {
		frame, more := frames.Next()
		all = append(all, frame)
		if !more {
			break
		}
	}
	for i, f := range all {
		if f.Function == "runtime.gopanic" {
			all = all[i+1:]
			break
		}
	}
	for len(all) > 1 && strings.HasPrefix(all[0].Function, "runtime.") {
		all = all[1:]
	}
	end := len(all)
	for i, f := range all {
		if strings.HasPrefix(f.Function, callers) && i > 0 {
			end = i
			break
		}
	}
	var out strings.Builder
	for _, f := range all[:end] {
		fmt.Fprintf(&out, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
	}
	return []byte(out.String())
}

// Running tracks the calls of handlers that have not returned, including those that were given up as stuck (contract
// 5.4). The processor and all synchronous channels of an inbox share one. It is safe for concurrent use. A nil Running
// tracks nothing.
type Running struct {
	now func() time.Time

	mu    sync.Mutex
	last  uint64                 // the number of the latest call
	calls map[uint64]RunningCall // by number, so that a call costs no allocation
}

// RunningCall is a call of a handler that has not returned.
type RunningCall struct {
	Handler *handler.Handler
	Since   time.Time // when it began, by the inbox's clock

	deliveries []handler.Delivery // read-only
	cancel     context.CancelCauseFunc
}

// NewRunning returns a Running without calls; now is the inbox's clock.
func NewRunning(now func() time.Time) *Running {
	return &Running{now: now, calls: map[uint64]RunningCall{}}
}

// MessageIDs returns the IDs of the messages that the call handles: several for a batch handler.
func (c RunningCall) MessageIDs() []string {
	ids := make([]string, len(c.deliveries))
	for i, d := range c.deliveries {
		ids[i] = d.ID
	}
	return ids
}

// begin records a call and returns its number. The call is running until end is called with it.
func (r *Running) begin(h *handler.Handler, deliveries []handler.Delivery, cancel context.CancelCauseFunc) uint64 {
	if r == nil {
		return 0
	}
	c := RunningCall{Handler: h, Since: r.now(), deliveries: deliveries, cancel: cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.calls[r.last] = c
	return r.last
}

func (r *Running) end(call uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, call)
}

// Find returns the latest call of a handler key for a message, in its attempt of that number if that is not 0. Earlier
// ones were given up as stuck.
func (r *Running) Find(handlerKey, messageID string, attempt int) (call RunningCall, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var latest uint64 // calls are numbered from 1
	for number, c := range r.calls {
		if number > latest && slices.ContainsFunc(c.deliveries, func(d handler.Delivery) bool {
			return d.ID == messageID && d.HandlerKey == handlerKey && (attempt == 0 || d.Attempt == attempt)
		}) {
			latest = number
		}
	}
	return r.calls[latest], latest > 0
}

// Cancel cancels the context of the call, also of those messages that share the call, for an operator.
func (c RunningCall) Cancel(actor string) { c.cancel(&Cancelled{By: actor}) }

// Calls returns the running calls, the longest first.
func (r *Running) Calls() []RunningCall {
	r.mu.Lock()
	calls := slices.Collect(maps.Values(r.calls))
	r.mu.Unlock()
	slices.SortFunc(calls, func(a, b RunningCall) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Handler.Key(), b.Handler.Key()))
	})
	return calls
}
