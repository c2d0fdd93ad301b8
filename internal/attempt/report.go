package attempt

import (
	"context"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

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
