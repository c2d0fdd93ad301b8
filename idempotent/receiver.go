// Package idempotent handles each message once although its transport delivers it more than once (contract 8). It is
// for consumers whose transport owns the retries. It needs no Kafka, no Fx and no processor.
//
//	handle, err := idempotent.Wrap(store, "billing", charge)
//	…
//	err = handle(ctx, message) // nil: acknowledge. Any error: deliver it again.
//
// A Store remembers the processed messages, by message ID and handler key: gormstore in the handler's own transaction,
// so that the handler's writes happen exactly once; redisstore effectively once; memstore in the memory of this
// process.
package idempotent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/keyless"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Receiver wraps the handlers of a channel with one store and one set of options (contract 8.1). It is safe for
// concurrent use.
type Receiver struct {
	store Store
	cfg   config

	counters counters

	mu       sync.Mutex
	handlers map[string]bool // by key
}

// New returns a Receiver; opts hold for all its handlers unless Handle overrides them. With a nil store the handlers
// run for every message, which is logged once if there is a logger; with RequireStore it is ErrNoStore (contract 8.5).
// The error joins everything that is wrong.
func New(store Store, opts ...Option) (*Receiver, error) {
	r, err := newReceiver(store, opts)
	if err != nil {
		return nil, problems.Prefix("idempotent receiver: ", err)
	}
	return r, nil
}

func newReceiver(store Store, opts []Option, about ...zap.Field) (*Receiver, error) {
	r := &Receiver{store: store, cfg: config{Options: DefaultOptions()}.with(opts), handlers: map[string]bool{}}
	if err := errors.Join(r.cfg.Validate(), r.cfg.checkStore(store)); err != nil {
		return nil, err
	}
	if store == nil {
		r.cfg.log.Warn("inbox: no store of processed messages, handlers run each time a message comes; logged once",
			append(about, zap.String(telemetry.FieldChannel, r.cfg.Channel))...)
	}
	return r, nil
}

// errNoLogger refuses LogDuplicates without a logger: no duplicate would ever be logged.
var errNoLogger = fmt.Errorf("option Duplicates is %q, but there is no logger: set option Logger", LogDuplicates)

// checkStore returns what is wrong with a store, which may be nil.
func (c config) checkStore(store Store) error {
	if store == nil {
		if c.RequireStore {
			return ErrNoStore
		}
		return nil
	}
	if isNil(store) { // the error of its constructor was ignored
		return fmt.Errorf("the store is a nil %T", store)
	}
	return nil
}

func isNil(store Store) bool {
	v := reflect.ValueOf(store)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Handle wraps fn for r: the returned function calls fn unless the store says that the message has been processed. It
// returns
//
//   - nil if fn has returned nil and that is remembered, or if the message is a duplicate: acknowledge the
//     message;
//   - an *IDError, without calling fn, if the message has no usable ID;
//   - a *DuplicateError for duplicates under FailDuplicates;
//   - ErrInProgress or ErrLost, wrapped or not: do not acknowledge the message, so that it is delivered
//     again;
//   - the store's error, if fn may or may not have been called but nothing is remembered, and otherwise
//     fn's own error, as the store returns it.
//
// A panic of fn is not recovered. fn gets a context derived from the caller's, and must be safe for concurrent use if
// the result is used concurrently. The key is the handler's permanent name: a message that was processed under another
// key is not known. Do not wrap handlers that are registered with an inbox: the inbox remembers by itself.
//
// The error joins all mistakes: a key that is not 1 to 200 characters of valid UTF-8 without NUL or that r has already,
// a nil fn, messages that cannot have an ID, options out of range, LogDuplicates without a logger.
func Handle[T any](
	r *Receiver, handlerKey string, fn func(ctx context.Context, message T) error, opts ...Option,
) (func(ctx context.Context, message T) error, error) {
	cfg := r.cfg.with(opts)
	identifier, err := newIdentifier[T](handlerKey, cfg)
	all := []error{err, cfg.checkStore(r.store)}
	if fn == nil {
		all = append(all, errors.New("its function is nil"))
	}
	if cfg.Duplicates == LogDuplicates && cfg.Logger == nil && r.store != nil {
		all = append(all, errNoLogger)
	}
	w := &wrapped[T]{store: r.store, Identifier: identifier, fn: fn, counters: &r.counters}
	w.measured, err = telemetry.NewReceiver(cfg.MeterProvider, handlerKey, cfg.Channel)
	err = errors.Join(append(all, err)...)
	if err == nil {
		err = r.register(append([]string{handlerKey}, cfg.legacyKeys...))
	}
	if err != nil {
		return nil, problems.Prefix(fmt.Sprintf("idempotent handler %q: ", handlerKey), err)
	}
	return w.handle, nil
}

// Wrap wraps one handler with a new Receiver, see New and Handle. Message IDs must be unique across all messages of the
// handler, of any source and type: see Key.
func Wrap[T any](
	store Store, handlerKey string, fn func(ctx context.Context, message T) error, opts ...Option,
) (func(ctx context.Context, message T) error, error) {
	r, err := newReceiver(store, opts, zap.String(telemetry.FieldHandlerKey, handlerKey))
	if err != nil {
		return nil, problems.Prefix(fmt.Sprintf("idempotent handler %q: ", handlerKey), err)
	}
	return Handle(r, handlerKey, fn)
}

// Store returns the store that r was made with; nil if there is none.
func (r *Receiver) Store() Store { return r.store }

// register refuses keys of which one is registered already: the second of two handlers with one key would never get a
// message that the first has processed.
func (r *Receiver) register(keys []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(keys, func(key string) bool { return r.handlers[key] }); i >= 0 {
		return fmt.Errorf("the receiver has another handler with the key %q", keys[i])
	}
	for _, key := range keys {
		r.handlers[key] = true
	}
	return nil
}

// Counts returns the counts of all handlers together.
func (r *Receiver) Counts() Counts { return r.counters.snapshot() }

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
	counter, outcome, began := &w.counters.failed, handler.AttemptFailed, time.Now()
	defer func() { // also if it panics or ends its goroutine
		counter.Add(1)
		w.ended(ctx, outcome, began)
	}()
	err := w.fn(ctx, message)
	if err == nil {
		counter, outcome = &w.counters.undeduplicated, handler.AttemptCompleted
	}
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

// Counts count the messages of this process since the receiver was made, by what became of them. They are not durable;
// the store is.
type Counts struct {
	// Processed counts messages that were handled and are remembered.
	Processed int64
	// DuplicateSkipped counts messages that had been processed before, under any option Duplicates.
	DuplicateSkipped int64
	// MissingKey counts how often a message without an ID came to a handler, whether or not AllowMissingID let it pass.
	// A repeated attempt counts again.
	MissingKey int64
	// InvalidKey counts messages refused for another reason of their ID: too long, not valid UTF-8, or a failed KeyBy.
	InvalidKey int64
	// Failed counts calls of the handler that ended with an error, a panic or the end of their goroutine.
	Failed int64
	// InProgress counts messages that were being handled elsewhere.
	InProgress int64
	// Lost counts calls that ended with ErrLost: the handler may run again.
	Lost int64
	// StoreFailed counts calls that ended with an error of the store itself.
	StoreFailed int64
	// Undeduplicated counts messages that were handled but are not remembered, because there is no store or no ID.
	Undeduplicated int64
}

// counters are the counters of one receiver.
type counters struct {
	processed, duplicateSkipped, missingKey, invalidKey, failed, inProgress, lost, storeFailed, undeduplicated atomic.Int64
}

// snapshot reads all counters, one after the other.
func (c *counters) snapshot() Counts {
	return Counts{
		Processed: c.processed.Load(), DuplicateSkipped: c.duplicateSkipped.Load(), MissingKey: c.missingKey.Load(),
		InvalidKey: c.invalidKey.Load(),
		Failed:     c.failed.Load(), InProgress: c.inProgress.Load(), Lost: c.lost.Load(), StoreFailed: c.storeFailed.Load(),
		Undeduplicated: c.undeduplicated.Load(),
	}
}
