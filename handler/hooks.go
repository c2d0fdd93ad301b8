package handler

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// AcceptedEvent describes one message that was stored for the first time, for OnAccepted.
type AcceptedEvent struct {
	Channel   string
	MessageID string
	Type      string
	// Handlers is the number of the message's status rows.
	Handlers int
}

// AttemptEvent describes one attempt whose result is stored, for OnAttempt.
type AttemptEvent struct {
	MessageID  string
	HandlerKey string
	Type       string
	// Attempt counts from 1, see Metadata.Attempt.
	Attempt int
	Outcome AttemptOutcome
	// Err is the attempt's error, unredacted (contract 11.6); nil when completed.
	Err error
	// Duration is how long the handler ran.
	Duration time.Duration
	// NextAttemptAt is when the next attempt is due; zero if there is none or its time is not known.
	NextAttemptAt time.Time
}

// Hooks are functions of the application that are called on events (contract 10.6). They run on the inbox's goroutines
// after the event is durable, so they must be quick. A panic is logged and swallowed. Do not use them for effects that
// must happen: a crash can lose the call. Any may be nil.
type Hooks struct {
	OnAccepted func(ctx context.Context, e AcceptedEvent)
	OnAttempt  func(ctx context.Context, e AttemptEvent)
	OnPoisoned func(ctx context.Context, e AttemptEvent)
}

// CallHook runs one hook and turns a panic into an error, for the log. It does nothing if hook is nil.
func CallHook[E any](ctx context.Context, hook func(context.Context, E), event E) error {
	if hook == nil {
		return nil
	}
	return routine.Protect("hook", func() error {
		hook(ctx, event)
		return nil
	})
}
