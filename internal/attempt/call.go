package attempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// limited applies an attempt's timeout to ctx; 0 means no limit.
func limited(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, ErrTimeout)
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
func call(ctx context.Context, tx *gorm.DB, h *handler.Handler, outer []handler.Middleware, running *Running,
	p patience, deliveries ...handler.Delivery,
) []error {
	results := make(chan []error, 1)
	number := running.begin(h, deliveries)
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

// call runs the handler's code. The errors are in the order of the attempts.
func (r *Runner) call(ctx context.Context, session, tx *gorm.DB, group []*Attempt, c Call) []error {
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
	errs := call(handler.ContextWithDB(ctx, session), tx, group[0].Handler, r.Middleware, r.Running, p, deliveries...)
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
