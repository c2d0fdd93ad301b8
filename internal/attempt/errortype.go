package attempt

import (
	"context"
	"errors"

	"github.com/gorm-inbox/inbox/handler"
)

// ErrorType returns the class of an attempt's failure, for metrics and spans: one of a few names, or "" if there is no
// failure. cause is the cause with which its context ended.
func ErrorType(err, cause error) string {
	if err == nil { // the usual case: skip what follows, which allocates
		return ""
	}
	var (
		panicked *PanicError
		body     *handler.DecodeError
	)
	switch {
	case errors.Is(err, ErrStuck):
		return "stuck"
	case errors.Is(cause, ErrTimeout):
		return "timeout"
	case errors.As(err, &panicked), errors.Is(err, errGoexit):
		return "panic"
	case errors.As(err, &body):
		return "decode"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	default:
		return "_OTHER" // OpenTelemetry's name for all other errors
	}
}

// decided reports whether the handler's error alone decides the message's outcome, as Poison and Snooze do.
func decided(err error) bool {
	var (
		poison *handler.PoisonError
		snooze *handler.SnoozeError
	)
	return errors.As(err, &poison) || errors.As(err, &snooze)
}
