// Package attempt runs handlers. An attempt is one run of one handler for one message: the call and everything that may
// go wrong in it, its deadline, the transaction around it, and what its error means for the message.
//
// Two packages use it: processor runs what an inbox has stored, synchronous runs what a transport is waiting for. No
// other package calls a handler.
package attempt

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Attempt is one run of one handler for one message. It must not be used concurrently.
type Attempt struct {
	Handler *handler.Handler
	Policy  Policy
	// Failures is how many failed attempts have been charged so far.
	Failures int
	// Interrupted is how many attempts in a row a failure of the database has interrupted while their transaction was
	// open. LastInterrupted is when it did so last, by this process's clock, or earlier. Run counts its own
	// interruption. The caller begins again at 0 after an attempt that was not interrupted.
	Interrupted     int
	LastInterrupted time.Time
	// Timeout limits the call, see Policy.Timeout; 0 means no limit.
	Timeout time.Duration
	// Alone keeps the attempt from sharing a call or a transaction with others.
	Alone bool

	// Run sets the fields below. Again says that the attempt has no result and must run once more at once, because
	// others kept it from ending or its transaction collided with another one.
	Again bool
	// Err is the attempt's error; nil if the handler returned nil.
	Err error
	// Cause is why the handler's context ended; nil if it had not ended.
	Cause error
	// Stored says that the writes of Steps.Write for it are committed.
	Stored bool
	// Stale says that Steps.Write or Steps.Check refused the attempt: nothing ran, or everything was rolled back.
	Stale    bool
	Duration time.Duration

	// delivery is what the handler gets, as a list of one that its call takes as it is.
	delivery []handler.Delivery
	// watched is the transaction that the handler last wrote in. A batch shares it.
	watched *handlertx.Guard
	// unanswered is the last transaction whose commit got no response.
	unanswered *handlertx.Guard
	collisions int                // how often the attempt ran again after a collision
	span       *telemetry.Attempt // the span of its call, which others may share; nil if not traced
}

// SetDelivery sets what the handler gets. The last delivery is not changed: a call that was given up may still read it.
func (a *Attempt) SetDelivery(d handler.Delivery) { a.delivery = []handler.Delivery{d} }

// Forget drops what the handler gets, once no call of it begins any more.
func (a *Attempt) Forget() { a.delivery = nil }

// Delivery returns what the handler gets. SetDelivery must have been called.
func (a *Attempt) Delivery() *handler.Delivery { return &a.delivery[0] }

// Reset prepares an attempt to run again.
func (a *Attempt) Reset() {
	a.Again, a.Err, a.Cause, a.Duration = false, nil, nil, 0
}

// NotifyCommitted calls the functions that wait for the commit of the attempt's transaction. It is for a commit that
// got no response and was found to be made later.
func (a *Attempt) NotifyCommitted() {
	if a.unanswered != nil {
		a.unanswered.Committed()
		a.unanswered = nil
	}
}

// NoteOutcome records the outcome of the attempt in the span of its call.
func (a *Attempt) NoteOutcome(outcome handler.AttemptOutcome, err error) {
	a.span.NoteOutcome(string(outcome), ErrorType(err, a.Cause), err)
}

// EndSpan ends the span of the attempt's call, if there is one.
func (a *Attempt) EndSpan() {
	a.span.End()
	a.span = nil
}

func (a *Attempt) repeat(alone bool) {
	a.Again, a.Alone = true, a.Alone || alone
	a.Err, a.Stored, a.Stale = nil, false, false
}

func repeatAlone(groups ...[]*Attempt) {
	for _, group := range groups {
		for _, a := range group {
			a.repeat(true)
		}
	}
}

func fail(group []*Attempt, err error) {
	for _, a := range group {
		a.Err = err
	}
}

// Reports counts and measures attempts that have ended, and calls the hooks.
type Reports struct {
	Counters    *telemetry.Counters
	Instruments *telemetry.Instruments
	Hooks       handler.Hooks
	Log         *zap.Logger
}

// counted is the counters that each outcome raises.
var counted = map[handler.AttemptOutcome][]telemetry.Event{
	handler.AttemptCompleted: {telemetry.Processed},
	handler.AttemptFailed:    {telemetry.Failed},
	handler.AttemptPoisoned:  {telemetry.Failed, telemetry.Poisoned},
	handler.AttemptSnoozed:   {telemetry.Snoozed},
	handler.AttemptReleased:  {telemetry.Released},
}

// Ended reports one attempt. transport is the transport of its message, and cause is the cause with which the handler's
// context ended. An attempt without a duration did not run, and is not measured.
func (r *Reports) Ended(ctx context.Context, e handler.AttemptEvent, transport string, cause error) {
	for _, c := range counted[e.Outcome] {
		r.Counters.OfHandler(c, e.HandlerKey, 1)
	}
	if e.Duration > 0 {
		r.Instruments.Ran(ctx, e.HandlerKey, transport, string(e.Outcome), ErrorType(e.Err, cause), e.Duration)
	}
	r.CallHooks(ctx, e)
}

// CallHooks calls the hooks for an attempt, without counting it. ctx ends when the hooks must return.
func (r *Reports) CallHooks(ctx context.Context, e handler.AttemptEvent) {
	if err := handler.CallHook(ctx, r.Hooks.OnAttempt, e); err != nil {
		r.Log.Error("inbox hook OnAttempt failed", zap.String(telemetry.FieldMessageID, e.MessageID), zap.Error(err))
	}
	if e.Outcome != handler.AttemptPoisoned {
		return
	}
	if err := handler.CallHook(ctx, r.Hooks.OnPoisoned, e); err != nil {
		r.Log.Error("inbox hook OnPoisoned failed", zap.String(telemetry.FieldMessageID, e.MessageID), zap.Error(err))
	}
}

// ErrorType returns the class of an attempt's failure, for metrics and spans: one of a few names, or "" if there is no
// failure. cause is the cause with which its context ended.
func ErrorType(err, cause error) string {
	if err == nil { // the usual case: skip what follows, which allocates
		return ""
	}
	switch {
	case errors.Is(err, ErrStuck):
		return "stuck"
	case errors.Is(cause, ErrTimeout):
		return "timeout"
	case errors.As(err, new(*PanicError)), errors.Is(err, errGoexit):
		return "panic"
	case errors.As(err, new(*handler.DecodeError)):
		return "decode"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	default:
		return "_OTHER" // OpenTelemetry's name for all other errors
	}
}
