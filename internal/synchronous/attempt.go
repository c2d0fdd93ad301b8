package synchronous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// run is one running attempt.
type run struct {
	*Runner
	*task
	at      partition
	hard    context.Context // ends when there is no more time for handlers
	skipped bool            // the handler has processed the message before
}

// try makes one attempt and records its result in the task. It returns an error if there was no time to begin the
// attempt, or if ctx ended before the attempt did.
func (r *Runner) try(ctx context.Context, stopping <-chan struct{}, at partition, t *task) error {
	if !r.enter(ctx, stopping, at) {
		return envelope.ErrInterrupted
	}
	received := t.received
	received.Attempt = t.Failures + 1
	t.SetDelivery(received)
	t.Reset()
	a := &run{Runner: r, task: t, at: at, hard: ctx}
	started := time.Now()
	tracing := attempt.StartSpan(ctx, r.cfg.Instruments, &t.Attempt)
	defer t.EndSpan()
	t.Err = a.protected(tracing)
	<-r.slots
	return a.applyVerdict(ctx, time.Since(started))
}

// enter waits until an attempt may begin, and takes a slot. It returns false if stopping is closed or ctx ends first.
//
// Once it has a slot, it checks stopping, ctx and the stuck calls again: while it waited, the call that had the slot
// may have been given up as stuck. That call is recorded as stuck before it returns its slot, so the next owner of the
// slot sees it. enter then returns the slot, because no waiter may hold one while a stuck call blocks it.
func (r *Runner) enter(ctx context.Context, stopping <-chan struct{}, at partition) bool {
	for r.stuck.await(ctx, stopping, at) {
		select {
		case r.slots <- struct{}{}:
		case <-stopping:
			return false
		case <-ctx.Done():
			return false
		}
		if over := closed(stopping) || ctx.Err() != nil; !over && !r.stuck.blocks(at) {
			return true
		}
		<-r.slots
	}
	return false
}

// protected makes the attempt and turns a panic of other code than the handler, such as a function that finds the ID,
// into the attempt's failure: it must not end the process.
func (a *run) protected(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = attempt.Recovered(v)
		}
	}()
	if m := a.cfg.Memories[a.Handler]; m != nil {
		return a.remembered(ctx, m)
	}
	return a.call(ctx, nil)
}

// call runs the handler. It runs it again at once after a collision of its transaction.
func (a *run) call(ctx context.Context, steps *attempt.Steps) error {
	for again := true; again; again = a.Again {
		a.Reset()
		own := ownCopy(a.received)
		own.ID, own.Attempt = a.Delivery().ID, a.Delivery().Attempt
		a.SetDelivery(own)
		noted := a.stuck.begin(a.at, a.Handler.Key())
		a.attempts.Run(ctx, []*attempt.Attempt{&a.Attempt}, attempt.Call{
			Steps: steps, MayStart: func(context.Context) error { return a.hard.Err() }, Until: a.hard,
			Overdue: func() {
				noted.overdue()
				a.log.Error("inbox: handler ignores its cancelled context", a.fields()...)
			},
			Returned: noted.returned,
		})
		noted.ended(errors.Is(a.Err, attempt.ErrStuck))
	}
	return a.Err
}

// ownCopy copies the values that a call may change in place. The handler owns its message, but other handlers get the
// same message, and the raw record, which shares its memory, may have to be kept. A call that was given up as stuck may
// even change the message while another call reads it.
func ownCopy(d handler.Delivery) handler.Delivery {
	d.Content, d.OrderingKey = bytes.Clone(d.Content), bytes.Clone(d.OrderingKey)
	d.Properties.Attributes = maps.Clone(d.Properties.Attributes)
	d.Properties.Headers = slices.Clone(d.Properties.Headers)
	for i, h := range d.Properties.Headers {
		d.Properties.Headers[i].Value = bytes.Clone(h.Value)
	}
	if k := d.Properties.Kafka; k != nil {
		own := *k
		own.Key = bytes.Clone(k.Key)
		d.Properties.Kafka = &own
	}
	return d
}

// applyVerdict carries out the verdict, counts the attempt and calls the hooks. Once ctx has ended, every error counts
// as a consequence of that, and the transport delivers the record again.
func (a *run) applyVerdict(ctx context.Context, took time.Duration) error {
	v := a.Verdict()
	if a.again && v.Outcome == handler.AttemptSnoozed {
		v.Outcome, v.Err = handler.AttemptPoisoned, fmt.Errorf("it is not ready, and asks to run again in %s", v.Delay)
	}
	if ctx.Err() != nil && v.Outcome != handler.AttemptCompleted {
		a.ended(ctx, handler.AttemptReleased, v.Err, took)
		return envelope.ErrInterrupted
	}
	if v.Outcome == handler.AttemptReleased {
		a.putOff(ctx, v.Err, took)
		return nil
	}
	a.outage.End(a.task)
	if v.Cut == nil {
		a.Interrupted = 0
	}
	if v.Charged {
		a.Failures++
	}
	if v.Outcome != handler.AttemptFailed {
		a.failing.forget(a.task)
	}
	switch v.Outcome {
	case handler.AttemptCompleted:
		a.done = true
		if a.skipped {
			a.known = true
			a.NoteOutcome(skipped, nil)
			return nil
		}
	case handler.AttemptPoisoned: // the record is bad once the other handlers have ended
		a.done, a.failure = true, v.Err
		a.log.Error("inbox: handler gave up a message", append(a.fields(), zap.Error(v.Err))...)
	default:
		a.cut.Reset()
		a.due = time.Now().Add(v.Delay)
		if v.Outcome == handler.AttemptFailed {
			now := a.cfg.Clock.Now()
			a.failing.set(a.task, health.FailingHandler{Topic: a.at.topic, Partition: a.at.id, HandlerKey: a.Handler.Key(),
				MessageID: a.Delivery().ID, Failures: a.Failures, Since: now, Next: now.Add(v.Delay),
				Err: brief.Error(v.Err)})
			a.log.Warn("inbox: attempt failed, retrying",
				append(a.fields(), zap.Duration(telemetry.FieldTryingAgainAfter, v.Delay), zap.Error(v.Err))...)
		}
	}
	a.ended(ctx, v.Outcome, v.Err, took)
	return nil
}

// skipped is an outcome used in spans only: the handler has processed the message before.
const skipped handler.AttemptOutcome = "skipped"

// putOff schedules the repeat of an uncharged attempt.
func (a *run) putOff(ctx context.Context, err error, took time.Duration) {
	a.due = time.Now().Add(a.cut.Next())
	if errors.Is(err, idempotent.ErrInProgress) {
		a.outage.End(a.task)
		return // another process is making the attempt
	}
	if store.IsSerialization(err) {
		a.outage.End(a.task) // another transaction was the cause, not the database
	} else {
		a.outage.Begin(a.task, err, a.fields()...)
	}
	a.ended(ctx, handler.AttemptReleased, err, took)
}

func (a *run) fields() []zap.Field {
	return []zap.Field{zap.String(telemetry.FieldHandlerKey, a.Handler.Key()),
		zap.String(telemetry.FieldMessageID, a.Delivery().ID), zap.Int(telemetry.FieldAttempt, a.Delivery().Attempt),
		zap.String(telemetry.FieldTopic, a.at.topic), zap.Int(telemetry.FieldPartition, a.at.id)}
}

// ended reports the attempt.
func (a *run) ended(ctx context.Context, outcome handler.AttemptOutcome, err error, took time.Duration) {
	a.NoteOutcome(outcome, err)
	e := handler.AttemptEvent{MessageID: a.Delivery().ID, HandlerKey: a.Handler.Key(), Type: a.Delivery().Type,
		Attempt: a.Delivery().Attempt, Outcome: outcome, Err: err, Duration: took}
	if !a.done && outcome != handler.AttemptReleased {
		e.NextAttemptAt = a.cfg.Clock.Now().Add(time.Until(a.due))
	}
	a.reports.Ended(context.WithoutCancel(ctx), e, a.Delivery().Transport, a.Cause)
}
