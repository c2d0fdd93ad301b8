package attempt

import (
	"context"
	"errors"

	"github.com/gorm-inbox/inbox/handler"
)

// ErrorType is the class of an attempt's failure, for metrics and spans: one of a
// handful, and "" if there is none. cause is what its context ended with.
func ErrorType(err, cause error) string {
	if err == nil { // as it mostly is, and what follows allocates
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
		return "_OTHER" // as OpenTelemetry's conventions call the rest
	}
}

// decided reports whether a handler's error says what is to become of the message,
// whatever led to it: Poison and Snooze do.
func decided(err error) bool {
	var (
		poison *handler.PoisonError
		snooze *handler.SnoozeError
	)
	return errors.As(err, &poison) || errors.As(err, &snooze)
}
