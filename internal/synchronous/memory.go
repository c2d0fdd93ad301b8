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

// Memory remembers which messages of an Inline channel one handler has processed (contract 8). It is safe for
// concurrent use.
type Memory struct {
	id    *idempotent.Identifier[handler.Delivery]
	store idempotent.Store // nil if nothing is remembered
	marks marker           // the store, if it can write its markers in the handler's transaction; otherwise nil
}

// marker is a store that can write its markers in a transaction of the handlers' database. *gormstore.Store is one.
type marker interface {
	// Joins reports whether it can do so in transactions of db.
	Joins(db *gorm.DB) bool
	Mark(ctx context.Context, tx *gorm.DB, run idempotent.Run) (duplicate bool, err error)
}

// NewMemory returns the Memory of a handler, whose transactions are db's. Without a store the handler runs each time a
// message is delivered. Options apply in this order: defaults, those that the handler itself declares, own. The error
// joins everything that is wrong.
func NewMemory(
	db *gorm.DB, s idempotent.Store, h *handler.Handler, defaults, own []idempotent.Option,
) (*Memory, error) {
	opts := slices.Clone(defaults)
	if d := h.Retention(); d > 0 {
		opts = append(opts, idempotent.Configure(func(o *idempotent.Options) { o.Retention = d }))
	}
	if find := h.IdempotencyKey(); find != nil {
		opts = append(opts, idempotent.KeyBy(find))
	}
	opts = append(opts, idempotent.LegacyKeys(h.LegacyKeys()...))
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

// remembered makes the attempt, unless the handler has processed the message before.
func (a *run) remembered(ctx context.Context, m *Memory) error {
	if m.store == nil {
		return a.call(ctx, nil)
	}
	asked, err := m.id.Run(*a.Delivery())
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
	if a.Delivery().ID == "" {
		a.Delivery().ID = asked.Key.MessageID
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

// unusableID returns the error of an attempt whose message has no usable ID. It poisons, because the ID is the same at
// each delivery, unless the body's codec failed: that error may ask for a retry.
func unusableID(err error) error {
	if id, ok := errors.AsType[*idempotent.IDError](err); ok {
		if _, undecoded := errors.AsType[*handler.DecodeError](id.Err); undecoded {
			return err
		}
	}
	return handler.Poison(err)
}

// duplicate ends the attempt of a message that was processed before.
func (a *run) duplicate(m *Memory, asked idempotent.Run) error {
	a.cfg.Counters.OfChannel(telemetry.DuplicateSkipped, a.cfg.Channel, 1)
	if err := m.id.Duplicate(asked); err != nil && !a.again {
		return handler.Poison(err)
	}
	a.skipped = true
	return nil
}

// marking returns the step that writes the markers at the beginning of the handler's transaction, so that both are
// committed or neither is.
func (a *run) marking(m *Memory, asked idempotent.Run) *attempt.Steps {
	return &attempt.Steps{Write: func(ctx context.Context, t *handlertx.Tx, group []*attempt.Attempt) ([]*attempt.Attempt,
		error) {
		ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
		defer cancel()
		duplicate, err := m.marks.Mark(ctx, t.DB.WithContext(ctx), asked)
		switch {
		case duplicate:
			return nil, attempt.ErrDone
		case store.IsSerialization(err):
			return nil, err
		case err != nil:
			return nil, &attempt.Cut{Reason: err}
		}
		return group, nil
	}}
}

// around makes the attempt with any other store, which claims the message before the attempt and writes the marker
// after it. Only the attempt's own error can make a record bad. A failure of the store is uncharged, and the message
// must not be acknowledged before a later attempt succeeds.
//
// If the store returns while the body is still running in another goroutine, around waits for the body: otherwise the
// next attempt would run beside this one.
func (a *run) around(ctx context.Context, m *Memory, asked idempotent.Run) (duplicate bool, err error) {
	var (
		calls   sync.Mutex // held while the body runs
		called  bool
		bodyErr error = &attempt.Cut{Reason: fmt.Errorf("store %T called nothing and reported success", m.store)}
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
		if bodyErr = a.call(ctx, nil); bodyErr != nil {
			return &failure{bodyErr}
		}
		a.Cause = nil // errors from here on are the store's, not the attempt's
		return nil
	}
	duplicate, err = protected(m.store, func() (bool, error) { return m.store.Run(ctx, asked, body) })
	left()
	calls.Lock() // never unlocked, so that a later call of the body is refused
	failed, ours := errors.AsType[*failure](err)
	switch {
	case err == nil && duplicate && (!called || bodyErr == nil):
		return true, nil
	case err == nil:
		return false, bodyErr
	case ours && !outsideFailure(err, idempotent.ErrLost):
		return false, failed.reason
	default: // the store failed, or the claim was lost and the handler's context cancelled for that
		return false, &attempt.Cut{Reason: err}
	}
}

// joined returns a context derived from ctx that also ends when other does.
func joined(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { unlink(); cancel(nil) }
}

// protected calls f and turns a panic of the store's code into an error. Panics of the attempt are recovered before.
func protected(s idempotent.Store, f func() (bool, error)) (duplicate bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			duplicate, err = false, fmt.Errorf("the store %T panicked: %v\n\n%s", s, v, debug.Stack())
		}
	}()
	return f()
}

// failure wraps the attempt's error, to distinguish it from errors that the store adds.
type failure struct{ reason error }

func (e *failure) Error() string { return e.reason.Error() }
func (e *failure) Unwrap() error { return e.reason }

// outsideFailure reports whether err contains target outside of a failure. The handler's error may contain anything,
// including the cause of its context's end, so it does not count.
func outsideFailure(err, target error) bool {
	if err == target {
		return true
	}
	switch e := err.(type) {
	case *failure:
		return false
	case interface{ Unwrap() error }:
		return outsideFailure(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(part error) bool { return outsideFailure(part, target) })
	}
	return false
}
