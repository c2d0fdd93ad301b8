package processor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestHooksRunOnlyForDurableChanges(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var mu sync.Mutex
		var accepted []handler.AcceptedEvent
		var attempts, poisoned []handler.AttemptEvent
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxRetries = 2
			o.Hooks = handler.Hooks{
				OnAccepted: func(_ context.Context, e handler.AcceptedEvent) { accepted = append(accepted, e) },
				OnAttempt: func(_ context.Context, e handler.AttemptEvent) {
					mu.Lock()
					defer mu.Unlock()
					e.Duration = 0
					attempts = append(attempts, e)
				},
				OnPoisoned: func(_ context.Context, e handler.AttemptEvent) { e.Duration = 0; poisoned = append(poisoned, e) },
			}
		}), inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			switch m.ID {
			case "snoozes":
				return handler.Snooze(time.Hour)
			case "fails":
				return handler.RetryAfter(time.Minute, errBoom)
			}
			return nil
		})))
		inboxtest.Accept(t, ib, "works", "works")
		require.Equal(t, []handler.AcceptedEvent{{Channel: "c", MessageID: "works", Type: "t", Handlers: 1}}, accepted,
			"a duplicate is not accepted again")
		event := func(id string, outcome handler.AttemptOutcome, attempt int, err error,
			next time.Time) handler.AttemptEvent {
			return handler.AttemptEvent{MessageID: id, HandlerKey: "h", Type: "t", Attempt: attempt, Outcome: outcome, Err: err,
				NextAttemptAt: next}
		}
		inboxtest.Process(t, ib)
		inboxtest.Accept(t, ib, "fails")
		inboxtest.Process(t, ib)
		failure := attempts[1].Err
		require.ErrorIs(t, failure, errBoom)
		inboxtest.Accept(t, ib, "snoozes")
		inboxtest.Process(t, ib)
		clock.Advance(time.Minute)
		inboxtest.Process(t, ib)
		require.Equal(t, []handler.AttemptEvent{
			event("works", "completed", 1, nil, time.Time{}),
			event("fails", "failed", 1, failure, inboxtest.Noon.Add(time.Minute)),
			event("snoozes", "snoozed", 1, nil, inboxtest.Noon.Add(time.Hour)),
			event("fails", "poisoned", 2, attempts[3].Err, time.Time{}),
		}, attempts)
		require.Equal(t, attempts[3:], poisoned)
	})
}

func TestHookPanicIsLoggedAndNotFatal(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
			o.Hooks = handler.Hooks{
				OnAccepted: func(context.Context, handler.AcceptedEvent) { panic("accepted") },
				OnAttempt:  func(context.Context, handler.AttemptEvent) { panic("attempt") },
				OnPoisoned: func(context.Context, handler.AttemptEvent) { panic("poisoned") },
			}
		}), inboxtest.Handlers(inboxtest.Do("works", inboxtest.Nothing), inboxtest.Do("fails", boom)))
		inboxtest.Accept(t, ib, "1", "2")
		require.Equal(t, processor.Drained{Picked: 4, Completed: 2, Poisoned: 2}, inboxtest.Process(t, ib))
		for message, n := range map[string]int{"OnAccepted failed": 2, "OnAttempt failed": 4, "OnPoisoned failed": 2} {
			require.Equal(t, n, logs.FilterMessageSnippet(message).Len(), message)
		}
	})
}
