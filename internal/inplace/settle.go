package inplace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/invoke"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// Outcomes of an attempt, as hooks name them.
const (
	completed = "completed"
	failed    = "failed"
	poisoned  = "poisoned"
	snoozed   = "snoozed"
	released  = "released"
	// skipped is of spans alone: the guard knows that it was processed before.
	skipped = "skipped"
)

// Pauses after an attempt that charged nothing: they double.
const (
	cutFirst = 50 * time.Millisecond
	cutMost  = 5 * time.Second
)

// settle decides what an attempt comes to (contract 5.5, 5.7, 7.6), counts and
// tells. A handler that returned nil has done its part, even in spite of a
// cancelled context; once ctx has ended, every error is taken for the echo of
// that, and the record is delivered again.
func (a *run) settle(ctx context.Context, err error, took time.Duration) error {
	var (
		poison     *handler.PoisonError
		snooze     *handler.SnoozeError
		retryAfter *handler.RetryAfterError
		cut        *uncharged
	)
	switch {
	case err == nil:
		a.outage.End(a.task)
		a.over = true
		if a.ran { // else the guard has skipped it
			a.cfg.Counters.OfHandler(telemetry.Processed, a.handler.Key(), 1)
			a.tell(ctx, completed, nil, took)
		} else {
			a.span.Came(skipped, "", nil)
		}
		return nil
	case ctx.Err() != nil:
		a.cfg.Counters.OfHandler(telemetry.Released, a.handler.Key(), 1)
		a.tell(ctx, released, err, took)
		return envelope.ErrInterrupted
	case errors.Is(err, ErrInProgress), errors.As(err, &cut) && !errors.Is(a.cause, invoke.ErrTimeout):
		a.putOff(ctx, err, took)
		return nil
	}
	a.outage.End(a.task)
	switch {
	case errors.As(err, &poison), handler.Undecodable(err):
		a.failures++
		a.giveUp(ctx, err, took)
		return nil
	case errors.As(err, &snooze):
		a.cut, a.due = 0, time.Now().Add(snooze.Delay)
		a.cfg.Counters.OfHandler(telemetry.Snoozed, a.handler.Key(), 1)
		a.tell(ctx, snoozed, nil, took)
		return nil
	}
	if errors.Is(a.cause, invoke.ErrTimeout) {
		err = fmt.Errorf("handler timed out after %s: %w", a.policy.Timeout, err)
	}
	a.failures++
	if a.failures >= max(a.policy.MaxRetries, 1) {
		a.giveUp(ctx, err, took)
		return nil
	}
	delay := time.Duration(0)
	if errors.As(err, &retryAfter) {
		delay = retryAfter.Delay
	} else {
		delay = a.policy.Delay(a.failures)
	}
	a.cut, a.due = 0, time.Now().Add(delay)
	a.cfg.Counters.OfHandler(telemetry.Failed, a.handler.Key(), 1)
	a.log.Warn("inbox: attempt failed, it is repeated in place", append(a.fields(), zap.Duration(telemetry.FieldTryingAgainAfter, delay), zap.Error(err))...)
	a.tell(ctx, failed, err, took)
	return nil
}

// giveUp ends a handler's part in failure; the record is bad then, and its
// policy follows when the others have come to their end.
func (a *run) giveUp(ctx context.Context, err error, took time.Duration) {
	a.over, a.failure = true, err
	a.cfg.Counters.OfHandler(telemetry.Failed, a.handler.Key(), 1)
	a.cfg.Counters.OfHandler(telemetry.Poisoned, a.handler.Key(), 1)
	a.log.Error("inbox: handler gave a message up", append(a.fields(), zap.Error(err))...)
	a.tell(ctx, poisoned, err, took)
}

// putOff repeats what was nobody's fault after a pause.
func (a *run) putOff(ctx context.Context, err error, took time.Duration) {
	delay := cutMost
	if a.cut < 10 {
		delay = min(cutFirst<<a.cut, cutMost)
	}
	delay = delay/2 + rand.N(delay/2+1)
	a.cut++
	a.due = time.Now().Add(delay)
	if errors.Is(err, ErrInProgress) {
		a.outage.End(a.task)
		return // it was somebody else's attempt
	}
	a.cfg.Counters.OfHandler(telemetry.Released, a.handler.Key(), 1)
	if store.IsSerialization(err) {
		a.outage.End(a.task) // it was another transaction
	} else {
		a.outage.Begin(a.task, err, a.fields()...)
	}
	a.tell(ctx, released, err, took)
}

func (a *run) fields() []zap.Field {
	return []zap.Field{zap.String(telemetry.FieldHandlerKey, a.handler.Key()), zap.String(telemetry.FieldMessageID, a.delivery.ID), zap.Int(telemetry.FieldAttempt, a.delivery.Attempt),
		zap.String(telemetry.FieldTopic, a.at.topic), zap.Int(telemetry.FieldPartition, a.at.id)}
}

// tell measures, ends the span and calls the hooks.
func (a *run) tell(ctx context.Context, outcome string, err error, took time.Duration) {
	class := invoke.ErrorType(err, a.cause)
	a.span.Came(outcome, class, err)
	a.cfg.Instruments.Ran(ctx, a.handler.Key(), a.delivery.Transport, outcome, class, took)
	if a.cfg.Hooks.OnAttempt == nil && a.cfg.Hooks.OnPoisoned == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	e := handler.AttemptEvent{MessageID: a.delivery.ID, HandlerKey: a.handler.Key(), Type: a.delivery.Type, Attempt: a.delivery.Attempt,
		Outcome: outcome, Err: err, Duration: took}
	if !a.over && outcome != released {
		e.NextAttemptAt = a.cfg.Clock.Now().Add(time.Until(a.due))
	}
	if err := handler.CallHook(ctx, a.cfg.Hooks.OnAttempt, e); err != nil {
		a.log.Error("inbox hook OnAttempt failed", zap.String(telemetry.FieldMessageID, e.MessageID), zap.Error(err))
	}
	if outcome != poisoned {
		return
	}
	if err := handler.CallHook(ctx, a.cfg.Hooks.OnPoisoned, e); err != nil {
		a.log.Error("inbox hook OnPoisoned failed", zap.String(telemetry.FieldMessageID, e.MessageID), zap.Error(err))
	}
}
