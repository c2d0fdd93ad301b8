// Package inline is what stands before the handlers of an Inline channel: an
// inplace.Guard that has idempotent receivers remember which handler has
// processed which message (contract 8).
package inline

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inplace"
	"github.com/gorm-inbox/inbox/internal/invoke"
)

// Guard lets each handler process each message once, as far as its store can
// tell. Add all handlers first; then it is safe for concurrent use.
type Guard struct {
	receivers []*idempotent.Receiver
	handle    map[*handler.Handler]func(context.Context, handler.Delivery) error
}

var _ inplace.Guard = (*Guard)(nil)

// New makes a Guard without handlers.
func New() *Guard {
	return &Guard{handle: map[*handler.Handler]func(context.Context, handler.Delivery) error{}}
}

// Receiver makes a receiver for handlers to be added with, see idempotent.New;
// their transactions are of db. A nil store lets all messages through.
func (g *Guard) Receiver(db *gorm.DB, store idempotent.Store, opts ...idempotent.Option) (*idempotent.Receiver, error) {
	r, err := idempotent.New(adapt(db, store), opts...)
	if err == nil {
		g.receivers = append(g.receivers, r)
	}
	return r, err
}

// Add puts a handler behind the guard. What h declares itself comes after the
// receiver's options, and opts after that.
func (g *Guard) Add(r *idempotent.Receiver, h *handler.Handler, opts ...idempotent.Option) error {
	var own []idempotent.Option
	if d := h.Retention(); d > 0 {
		own = append(own, idempotent.Retention(d))
	}
	if find := h.IdempotencyKey(); find != nil {
		own = append(own, idempotent.KeyBy(find))
	}
	handle, err := idempotent.Handle(r, h.Key(), body, append(own, opts...)...)
	g.handle[h] = handle
	return err
}

// Counts returns what the handlers' receivers have counted.
func (g *Guard) Counts() (duplicateSkipped, missingKey int64) {
	for _, r := range g.receivers {
		c := r.Counts()
		duplicateSkipped, missingKey = duplicateSkipped+c.DuplicateSkipped, missingKey+c.MissingKey
	}
	return duplicateSkipped, missingKey
}

// Run asks the handler's receiver, see inplace.Guard.
func (g *Guard) Run(ctx context.Context, h *handler.Handler, d handler.Delivery, run inplace.Attempt) error {
	a := &attempt{legacyKeys: h.LegacyKeys(), run: run}
	return verdict(g.handle[h](context.WithValue(ctx, attemptKey{}, a), d))
}

// attempt goes from Run to body, through receiver and store, in the context.
type attempt struct {
	legacyKeys []string
	run        inplace.Attempt
	id         string // by which the message is remembered
	// first, if not nil, writes the markers in the attempt's transaction; marking
	// is what came of it.
	first   func(ctx context.Context, tx *gorm.DB) error
	marking error
}

type attemptKey struct{}

var errStrangeContext = errors.New("the store called the handler with a context that is not derived from the one it got")

func underWay(ctx context.Context) (*attempt, error) {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	if a == nil {
		return nil, errStrangeContext
	}
	return a, nil
}

// body is what the receivers call for a message that may run. A panic, which is
// not the handler's (a driver's), stays the attempt's: the store's own are told
// from it.
func body(ctx context.Context, _ handler.Delivery) (err error) {
	a, err := underWay(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = &failure{invoke.Recovered(v)}
		}
	}()
	if err := a.run(ctx, a.id, a.first); err != nil {
		return &failure{err}
	}
	return nil
}

// failure is what an attempt came to, to be told from what a store adds to it.
type failure struct{ reason error }

func (e *failure) Error() string { return e.reason.Error() }
func (e *failure) Unwrap() error { return e.reason }

// verdict says to the runner what a receiver's error means. Only what the attempt
// itself came to, or what is wrong with the message, can make a record bad: what
// a store lacks passes, and the message must not be acknowledged before.
func verdict(err error) error {
	var (
		failed    *failure
		id        *idempotent.IDError
		body      *handler.DecodeError
		duplicate *idempotent.DuplicateError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed) && !beside(err, idempotent.ErrLost):
		return failed.reason
	case failed != nil: // the claim was lost, and the handler perhaps cancelled for it
		return inplace.Uncharged(err)
	case errors.Is(err, idempotent.ErrInProgress):
		return fmt.Errorf("%w: %w", inplace.ErrInProgress, err)
	case errors.As(err, &id) && errors.As(id.Err, &body):
		return err
	case id != nil, errors.As(err, &duplicate):
		return handler.Poison(err)
	default:
		return inplace.Uncharged(err)
	}
}

// beside reports whether a store says target, and not only the handler, which may
// return what it likes, the cause of its context's end included.
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
