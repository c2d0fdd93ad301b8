package synchronous

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Memory remembers which messages of an Inline channel one handler has processed
// (contract 8). It is safe for concurrent use.
type Memory struct {
	id    *idempotent.Identifier[handler.Delivery]
	store idempotent.Store // nil: nothing is remembered
	marks marker           // the store, if its markers can be in the handler's transaction
}

// marker is a store whose markers can be written in a transaction of the handlers'
// database; *gormstore.Store is one.
type marker interface {
	// Joins reports whether they can, for transactions of db.
	Joins(db *gorm.DB) bool
	Mark(ctx context.Context, tx *gorm.DB, run idempotent.Run) (duplicate bool, err error)
}

// NewMemory makes the Memory of a handler; its transactions are of db. Without a store
// the handler runs each time a message comes. Of the options, those that the handler
// itself declares come after defaults, and own after them. The error joins all that is
// wrong.
func NewMemory(
	db *gorm.DB, s idempotent.Store, h *handler.Handler, defaults, own []idempotent.Option,
) (*Memory, error) {
	opts := slices.Clone(defaults)
	if d := h.Retention(); d > 0 {
		opts = append(opts, idempotent.Retention(d))
	}
	if find := h.IdempotencyKey(); find != nil {
		opts = append(opts, idempotent.KeyBy(find))
	}
	id, err := idempotent.Identify[handler.Delivery](h.Key(), append(opts, own...)...)
	if err != nil {
		return nil, err
	}
	if err := id.CheckStore(s); err != nil {
		return nil, problems.Prefix(fmt.Sprintf("idempotent handler %q: ", h.Key()), err)
	}
	m := &Memory{id: id, store: s}
	if joining, ok := s.(marker); ok && joining.Joins(db) {
		m.marks = joining
	}
	return m, nil
}

// remembered makes the attempt unless the handler has processed the message before.
func (a *run) remembered(ctx context.Context, m *Memory) error {
	if m.store == nil {
		return a.call(ctx, nil)
	}
	asked, err := m.id.Run(a.Delivery)
	missing := errors.Is(err, idempotent.ErrMissingID) || err == nil && asked.Key.MessageID == ""
	if missing {
		a.cfg.Counters.OfChannel(telemetry.MissingKey, a.cfg.Channel, 1)
	}
	switch {
	case err != nil:
		return unusableID(err)
	case missing:
		return a.call(ctx, nil)
	}
	if a.Delivery.ID == "" {
		a.Delivery.ID = asked.Key.MessageID
	}
	var duplicate bool
	if m.marks != nil {
		err = a.call(ctx, a.marking(m, asked))
		duplicate = errors.Is(err, attempt.ErrDone)
	} else {
		duplicate, err = a.around(ctx, m, asked)
	}
	if !duplicate {
		return err
	}
	return a.duplicate(m, asked)
}

// unusableID is what a message comes to that has no ID to be remembered by: it is the
// same each time it comes, but for a codec that asks for a retry.
func unusableID(err error) error {
	var (
		id   *idempotent.IDError
		body *handler.DecodeError
	)
	if errors.As(err, &id) && errors.As(id.Err, &body) {
		return err
	}
	return handler.Poison(err)
}

// duplicate ends the attempt of a message that was processed before.
func (a *run) duplicate(m *Memory, asked idempotent.Run) error {
	a.cfg.Counters.OfChannel(telemetry.DuplicateSkipped, a.cfg.Channel, 1)
	if err := m.id.Duplicate(asked); err != nil {
		return handler.Poison(err)
	}
	a.skipped = true
	return nil
}

// marking writes the markers first in the transaction that the handler runs in: both are
// committed, or neither. A marker for each of the handler's keys is added, the newest
// first. While a rename is rolled out the old program marks the old key alone: whichever
// of the two comes second waits for the first, and finds its marker. Neither waits for
// the other with a key that the other wants, as long as all list their keys in one order.
func (a *run) marking(m *Memory, asked idempotent.Run) *attempt.Steps {
	return &attempt.Steps{Write: func(ctx context.Context, t *handlertx.Tx, group []*attempt.Attempt) ([]*attempt.Attempt,
		error) {
		ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
		defer cancel()
		for _, key := range a.Handler.Keys() {
			asked.Key.HandlerKey = key
			duplicate, err := m.marks.Mark(ctx, t.DB.WithContext(ctx), asked)
			switch {
			case duplicate:
				return nil, attempt.ErrDone
			case store.IsSerialization(err):
				return nil, err
			case err != nil:
				return nil, &attempt.Uncharged{Reason: err}
			}
		}
		return group, nil
	}}
}

// around asks any other store: its claim is there before the attempt begins, and its
// marker after the attempt's end. Only what the attempt itself came to can make a record
// bad. What a store lacks passes, and the message must not be acknowledged before.
//
// A store that returns while the body still runs, in a goroutine of its own, is waited
// for: else the next try would run beside this one.
func (a *run) around(ctx context.Context, m *Memory, asked idempotent.Run) (duplicate bool, err error) {
	var (
		calls  sync.Mutex // held by a call of the body
		called bool
		came   error = &attempt.Uncharged{Reason: fmt.Errorf("store %T called nothing and reported success", m.store)}
	)
	until, left := context.WithCancel(a.hard)
	defer left()
	body := func(ctx context.Context) error {
		if !calls.TryLock() {
			return fmt.Errorf("store %T called the handler while it ran, or after the store had returned", m.store)
		}
		defer calls.Unlock()
		ctx, cancel := joined(ctx, until)
		defer cancel()
		called = true
		if came = a.call(ctx, nil); came != nil {
			return &failure{came}
		}
		a.Cause = nil // what goes wrong from now on is not for its sake
		return nil
	}
	duplicate, err = protected(m.store, func() (bool, error) {
		for _, key := range a.Handler.LegacyKeys() {
			old := asked.Key
			old.HandlerKey = key
			if done, err := m.store.Processed(ctx, old); err != nil || done {
				return done, err
			}
		}
		return m.store.Run(ctx, asked, body)
	})
	left()
	calls.Lock() // and never unlocked: a call that comes later is refused
	var failed *failure
	switch {
	case err == nil && duplicate && (!called || came == nil):
		return true, nil
	case err == nil:
		return false, came
	case errors.As(err, &failed) && !beside(err, idempotent.ErrLost):
		return false, failed.reason
	default: // or the claim was lost, and the handler perhaps cancelled for it
		return false, &attempt.Uncharged{Reason: err}
	}
}

// joined is a context that ends with another, too, from which it need not be derived.
func joined(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { unlink(); cancel(nil) }
}

// protected takes a panic of a store's own for its error. Those of the attempt do not
// come this far.
func protected(s idempotent.Store, f func() (bool, error)) (duplicate bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			duplicate, err = false, fmt.Errorf("the store %T panicked: %v\n\n%s", s, v, debug.Stack())
		}
	}()
	return f()
}

// failure is what an attempt came to, to be told from what a store adds to it.
type failure struct{ reason error }

func (e *failure) Error() string { return e.reason.Error() }
func (e *failure) Unwrap() error { return e.reason }

// beside reports whether a store says target, and not only the handler, which may return
// what it likes, the cause of its context's end included.
func beside(err, target error) bool {
	if err == target {
		return true
	}
	switch e := err.(type) {
	case *failure:
		return false
	case interface{ Unwrap() error }:
		return beside(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if beside(part, target) {
				return true
			}
		}
	}
	return false
}
