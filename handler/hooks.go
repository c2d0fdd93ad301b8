package handler

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// AcceptedEvent tells OnAccepted of one message stored for the first time.
type AcceptedEvent struct {
	Channel   string
	MessageID string
	Type      string
	// Handlers is the number of status rows the message got.
	Handlers int
}

// AttemptEvent tells OnAttempt of one attempt whose result is stored.
type AttemptEvent struct {
	MessageID  string
	HandlerKey string
	Type       string
	// Attempt counts from 1, see Metadata.Attempt.
	Attempt int
	Outcome AttemptOutcome
	// Err is what the handler failed with, unredacted (contract 11.6); nil when
	// completed.
	Err error
	// Duration is how long the handler ran.
	Duration time.Duration
	// NextAttemptAt is zero unless another attempt is due at a known time.
	NextAttemptAt time.Time
}

// Hooks are the application's functions called on events (contract 10.6).
// They run on the inbox's goroutines after the event is durable, so they must
// be quick; a panic is logged and swallowed. Do not use them for effects that
// must happen: a crash can lose the call. Any may be nil.
type Hooks struct {
	OnAccepted func(ctx context.Context, e AcceptedEvent)
	OnAttempt  func(ctx context.Context, e AttemptEvent)
	OnPoisoned func(ctx context.Context, e AttemptEvent)
}

// CallHook runs one hook and turns its panic into an error for the log; it does
// nothing if hook is nil.
func CallHook[E any](ctx context.Context, hook func(context.Context, E), event E) error {
	if hook == nil {
		return nil
	}
	return routine.Protect("hook", func() error {
		hook(ctx, event)
		return nil
	})
}
