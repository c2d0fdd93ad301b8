package idempotent

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/keyless"
)

// wrapped is one wrapped handler.
type wrapped[T any] struct {
	*Identifier[T]
	store    Store // nil if there is none
	fn       func(context.Context, T) error
	counters *counters
}

func (w *wrapped[T]) handle(ctx context.Context, message T) error {
	ctx = keyless.With(ctx, false) // ctx may come from the handler of another message
	if w.store == nil {
		return w.undeduplicated(ctx, message)
	}
	run, err := w.Run(message)
	switch {
	case errors.Is(err, ErrMissingID):
		w.counters.missingKey.Add(1)
		return err
	case err != nil:
		w.counters.invalidKey.Add(1)
		return err
	case run.Key.MessageID == "":
		w.counters.missingKey.Add(1)
		return w.undeduplicated(keyless.With(ctx, true), message)
	}
	duplicate, err := w.once(ctx, run, message)
	if err != nil || !duplicate {
		return err
	}
	return w.Duplicate(run)
}

// undeduplicated calls the handler without asking the store.
func (w *wrapped[T]) undeduplicated(ctx context.Context, message T) error {
	succeeded := false
	defer func() { // also if it panics or ends its goroutine
		if succeeded {
			w.counters.undeduplicated.Add(1)
		} else {
			w.counters.failed.Add(1)
		}
	}()
	err := w.fn(ctx, message)
	succeeded = err == nil
	return err
}

// once makes the store run the handler, and counts the result. A message that was not handled must
// never be acknowledged, so an impossible result of a store becomes an error.
func (w *wrapped[T]) once(ctx context.Context, run Run, message T) (duplicate bool, err error) {
	var (
		called, returned bool
		failure          = errEnded // the error of the handler's last call; errEnded until it has returned
	)
	defer func() {
		if !returned {
			w.count(false, called, failure, errEnded)
		}
	}()
	duplicate, err = w.store.Run(ctx, run, func(ctx context.Context) error {
		called, failure = true, errEnded
		failure = w.fn(ctx, message)
		return failure
	})
	returned = true
	if err == nil && !duplicate {
		switch {
		case !called:
			err = fmt.Errorf("store %T: message %q, handler %q: it called nothing and reported success", w.store,
				run.Key.MessageID, run.Key.HandlerKey)
		case failure != nil:
			err = failure
		}
	}
	w.count(duplicate, called, failure, err)
	return duplicate, err
}

// errEnded stands for a call that has not returned: its goroutine has ended, or it has panicked and
// the store may have recovered the panic.
var errEnded = errors.New("the handler has not returned")

func (w *wrapped[T]) count(duplicate, called bool, failure, err error) {
	switch {
	case err == nil && duplicate:
		w.counters.duplicateSkipped.Add(1)
	case err == nil:
		w.counters.processed.Add(1)
	case errors.Is(err, ErrInProgress):
		w.counters.inProgress.Add(1)
	case errors.Is(err, ErrLost):
		w.counters.lost.Add(1)
	case called && failure != nil:
		w.counters.failed.Add(1)
	default:
		w.counters.storeFailed.Add(1)
	}
}
