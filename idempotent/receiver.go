package idempotent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"go.uber.org/zap"

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
	for _, key := range keys {
		if r.handlers[key] {
			return fmt.Errorf("the receiver has another handler with the key %q", key)
		}
	}
	for _, key := range keys {
		r.handlers[key] = true
	}
	return nil
}

// Counts returns the counts of all handlers together.
func (r *Receiver) Counts() Counts { return r.counters.snapshot() }
