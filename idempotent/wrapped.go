package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/keyless"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// wrapped is one wrapped handler.
type wrapped[T any] struct {
	*Identifier[T]
	store    Store // nil if there is none
	fn       func(context.Context, T) error
	counters *counters
	measured *telemetry.Receiver
}

func (w *wrapped[T]) handle(ctx context.Context, message T) error {
	ctx = keyless.With(ctx, false) // ctx may come from the handler of another message
	if w.store == nil {
		return w.undeduplicated(ctx, message)
	}
	run, err := w.Run(message)
	switch {
	case errors.Is(err, ErrMissingID):
		w.missing(ctx)
		return err
	case err != nil:
		w.counters.invalidKey.Add(1)
		return err
	case run.Key.MessageID == "":
		w.missing(ctx)
		return w.undeduplicated(keyless.With(ctx, true), message)
	}
	duplicate, err := w.once(ctx, run, message)
	if err != nil || !duplicate {
		return err
	}
	return w.Duplicate(run)
}

func (w *wrapped[T]) missing(ctx context.Context) {
	w.counters.missingKey.Add(1)
	w.measured.Count(ctx, telemetry.MissingKey)
}

// undeduplicated calls the handler without asking the store.
func (w *wrapped[T]) undeduplicated(ctx context.Context, message T) error {
	succeeded, began := false, time.Now()
	defer func() { // also if it panics or ends its goroutine
		if succeeded {
			w.counters.undeduplicated.Add(1)
			w.ended(ctx, handler.AttemptCompleted, began)
		} else {
			w.counters.failed.Add(1)
			w.ended(ctx, handler.AttemptFailed, began)
		}
	}()
	err := w.fn(ctx, message)
	succeeded = err == nil
	return err
}

// once makes the store run the handler, and counts the result. A message that was not handled must never be
// acknowledged, so an impossible result of a store becomes an error.
func (w *wrapped[T]) once(ctx context.Context, run Run, message T) (duplicate bool, err error) {
	var (
		began    time.Time // of the handler's last call; zero before the first
		returned bool
		failure  = errEnded // the error of the handler's last call; errEnded until it has returned
	)
	defer func() {
		if !returned {
			w.count(ctx, false, began, failure, errEnded)
		}
	}()
	duplicate, err = w.store.Run(ctx, run, func(ctx context.Context) error {
		began, failure = time.Now(), errEnded
		failure = w.fn(ctx, message)
		return failure
	})
	returned = true
	if err == nil && !duplicate {
		switch {
		case began.IsZero():
			err = fmt.Errorf("store %T: message %q, handler %q: it called nothing and reported success", w.store,
				run.Key.MessageID, run.Key.HandlerKey)
		case failure != nil:
			err = failure
		}
	}
	w.count(ctx, duplicate, began, failure, err)
	return duplicate, err
}

// errEnded stands for a call that has not returned: its goroutine has ended, or it has panicked and the store may have
// recovered the panic.
var errEnded = errors.New("the handler has not returned")

// count counts the result of a message. began is when the handler's last call began; zero if it was not called.
func (w *wrapped[T]) count(ctx context.Context, duplicate bool, began time.Time, failure, err error) {
	outcome := handler.AttemptReleased // nothing is known to be wrong with the message
	switch {
	case err == nil && duplicate:
		w.counters.duplicateSkipped.Add(1)
		w.measured.Count(ctx, telemetry.DuplicateSkipped)
		return
	case err == nil:
		w.counters.processed.Add(1)
		outcome = handler.AttemptCompleted
	case errors.Is(err, ErrInProgress):
		w.counters.inProgress.Add(1)
	case errors.Is(err, ErrLost):
		w.counters.lost.Add(1)
	case !began.IsZero() && failure != nil:
		w.counters.failed.Add(1)
		outcome = handler.AttemptFailed
	default:
		w.counters.storeFailed.Add(1)
	}
	if !began.IsZero() {
		w.ended(ctx, outcome, began)
	}
}

// ended measures a call of the handler.
func (w *wrapped[T]) ended(ctx context.Context, outcome handler.AttemptOutcome, began time.Time) {
	switch outcome {
	case handler.AttemptCompleted:
		w.measured.Count(ctx, telemetry.Processed)
	case handler.AttemptFailed:
		w.measured.Count(ctx, telemetry.Failed)
	}
	w.measured.Ran(ctx, outcome, time.Since(began))
}
