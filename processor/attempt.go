package processor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// attempt is one run of one handler for one claimed status.
type attempt struct {
	claim   store.Claim
	handler *handler.Handler
	timeout time.Duration

	// Set by the attempt's goroutine before it is announced as finished.
	err      error
	cause    error
	stored   bool // a transactional handler's completion is committed already
	fenced   bool // the claim was stale, nothing was run or everything rolled back
	duration time.Duration

	overdue bool // owned by the loop: it holds no slot any more (5.4)
}

// runner runs attempts; it keeps no state between them.
type runner struct {
	db               *gorm.DB
	store            store.Store
	now              func() time.Time
	statementTimeout time.Duration
	maxRetryDelay    time.Duration
	stuckGrace       time.Duration
}

// watcher is told about a handler that ignores its cancelled context
// (contract 5.4). Both are called from the attempt's goroutines.
type watcher struct {
	// overdue: it did not return within overdueTolerance.
	overdue func()
	// returned: it did so at last, after the attempt was given up.
	returned func()
}

// overdueTolerance is how long a handler may take to return once its context
// is cancelled before it is reported as ignoring it.
const overdueTolerance = time.Second

// ErrStuck is the failure of an attempt whose handler ignored its cancelled
// context for StuckHandlerGrace. The handler may still be running.
var ErrStuck = errors.New("handler ignores its cancelled context")

// run executes the attempt to its end. It returns whatever the handler does:
// panics and runtime.Goexit are failures, and a handler that does not return
// is given up StuckHandlerGrace after its context was cancelled.
//
// A panic that is not the handler's (a driver's, a plugin's) is its failure
// too: it must not end the process.
func (r *runner) run(ctx context.Context, a *attempt, w watcher) {
	if err := protect(func() { r.attempt(ctx, a, w) }); err != nil {
		a.err, a.stored = err, false
	}
}

func (r *runner) attempt(ctx context.Context, a *attempt, w watcher) {
	started := time.Now()
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.timeout, errTimeout)
		defer cancel()
	}
	delivery, err := deliver(a.claim)
	switch {
	case err != nil:
		a.err = &unrecoverable{err}
	case a.handler.Kind() == handler.Transactional:
		r.runTx(ctx, a, delivery, w)
	default:
		session := r.db.Session(&gorm.Session{NewDB: true, Context: ctx})
		a.err = r.call(handler.ContextWithDB(ctx, session), a.handler, nil, delivery, w)
	}
	a.cause = context.Cause(ctx)
	a.duration = time.Since(started)
}

// deliver makes the handler's input of what is stored. An error means that
// no attempt can ever succeed.
func deliver(c store.Claim) (handler.Delivery, error) {
	m := c.Message
	if m == nil {
		return handler.Delivery{}, fmt.Errorf("message %q is deleted", c.MessageID)
	}
	properties, err := handler.ParseProperties(m.SerializedProperties)
	if err != nil {
		return handler.Delivery{}, fmt.Errorf("message %q: %w", c.MessageID, err)
	}
	return handler.Delivery{
		Metadata: handler.Metadata{
			ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType, Transport: m.TransportName,
			Properties: properties, OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt,
			HandlerKey: c.HandlerKey, Attempt: c.ErrorCount + c.AbandonedCount + 1,
		},
		Content: m.Content,
	}, nil
}

// PanicError is the failure of an attempt whose handler panicked; its text,
// with the stack, is kept as last error.
type PanicError struct {
	Value any
	Stack []byte
}

// Error gives the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

var errGoexit = errors.New("handler ended its goroutine (runtime.Goexit, or FailNow of a test)")

// call runs the handler's own code in a goroutine of its own: neither Goexit
// nor a handler that never returns can be recovered from in ours.
func (r *runner) call(ctx context.Context, h *handler.Handler, tx *gorm.DB, d handler.Delivery, w watcher) error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			result <- err
		}()
		err = h.Run(ctx, tx, nil, d)[0]
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	patience := time.NewTimer(overdueTolerance)
	defer patience.Stop()
	select {
	case err := <-result:
		return err
	case <-patience.C:
		w.overdue()
	}
	patience.Reset(r.stuckGrace)
	select {
	case err := <-result:
		return err
	case <-patience.C:
		go func() { // ends when the handler does
			<-result
			w.returned()
		}()
		return fmt.Errorf("%w for %s", ErrStuck, r.stuckGrace)
	}
}
