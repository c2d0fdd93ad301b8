package gormstore

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/keyless"
)

// Wrap wraps one handler that writes through tx, the transaction that contains the message's marker (contract 8.1):
//
//	handle, err := gormstore.Wrap(store, "orders-ship", func(ctx context.Context, tx *gorm.DB, o Order) error {
//		return tx.Create(&Shipment{OrderID: o.ID}).Error
//	})
//	err = handle(ctx, order) // nil: acknowledge it
//
// Options and results of handle are as in idempotent.Wrap; Store.Run describes the transaction. tx is bound to ctx, and
// fn must not end it. With WithTx it is the caller's transaction. A message without an ID, if AllowMissingID lets it
// pass, has a transaction of the same kind without a marker. Do not wrap handlers that are registered with an inbox:
// the inbox remembers by itself.
func Wrap[T any](
	s *Store, handlerKey string, fn func(ctx context.Context, tx *gorm.DB, message T) error, opts ...idempotent.Option,
) (func(ctx context.Context, message T) error, error) {
	if err := check(s, fn == nil); err != nil {
		return nil, fmt.Errorf("idempotent handler %q: %w", handlerKey, err)
	}
	handle, err := idempotent.Wrap(s, handlerKey, inBody(s, handlerKey, fn), opts...)
	return outsideBody(handle), err
}

// Handle wraps one handler of a receiver that was made with s, see idempotent.Handle, and is otherwise like Wrap. A
// receiver without a store, or with another *Store, is an error: nothing would remember what tx has committed. A store
// of another type may contain s. If it does not, each message with an ID is an error, and fn is not called.
func Handle[T any](r *idempotent.Receiver, s *Store, handlerKey string,
	fn func(ctx context.Context, tx *gorm.DB, message T) error, opts ...idempotent.Option,
) (func(ctx context.Context, message T) error, error) {
	err := check(s, fn == nil)
	if err == nil {
		err = checkReceiver(r, s)
	}
	if err != nil {
		return nil, fmt.Errorf("idempotent handler %q: %w", handlerKey, err)
	}
	handle, err := idempotent.Handle(r, handlerKey, inBody(s, handlerKey, fn), opts...)
	return outsideBody(handle), err
}

func check(s *Store, noFn bool) error {
	switch {
	case s == nil:
		return errors.New("the *gormstore.Store is nil: there would be no transaction")
	case noFn:
		return errors.New("its function is nil")
	}
	return nil
}

// errOtherStore refuses receivers of another store: work that commits without this store's marker is done again when
// the message is delivered again.
var errOtherStore = errors.New("the receiver was not made with this *gormstore.Store, which would not remember what its transactions do")

func checkReceiver(r *idempotent.Receiver, s *Store) error {
	switch its := r.Store().(type) {
	case nil:
		return fmt.Errorf("%w: it has no store", errOtherStore)
	case *Store:
		if its != s {
			return errOtherStore
		}
	}
	return nil // other types may contain s, which the first message shows
}

// bodyKey is the context key of the transaction that a body runs in.
type bodyKey struct{}

// running is the transaction in which a store calls a body.
type running struct {
	store   *Store
	session *gorm.DB
}

// inBody calls fn with the session of the body that it runs in. A message without an ID has no run, so it gets a
// transaction here. Any other call outside of s's body is refused: it would have effects without a marker.
func inBody[T any](
	s *Store, handlerKey string, fn func(ctx context.Context, tx *gorm.DB, message T) error,
) func(ctx context.Context, message T) error {
	call := func(ctx context.Context, session *gorm.DB, message T) error {
		return fn(ctx, session.Session(&gorm.Session{NewDB: true, Context: ctx}), message)
	}
	unnamed := idempotent.Run{Key: idempotent.Key{HandlerKey: handlerKey}}
	return func(ctx context.Context, message T) error {
		if in, _ := ctx.Value(bodyKey{}).(running); in.store == s {
			return call(ctx, in.session, message)
		}
		if !keyless.Is(ctx) {
			return fmt.Errorf("gormstore: handler key %q: %w", handlerKey, errOtherStore)
		}
		_, err := s.do(ctx, work{Run: unnamed, unmarked: true, body: func(ctx context.Context) error {
			return call(ctx, ctx.Value(bodyKey{}).(running).session, message)
		}})
		return err
	}
}

// outsideBody hides the session of an outer body in which the call is made.
func outsideBody[T any](handle func(ctx context.Context, message T) error) func(ctx context.Context, message T) error {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, message T) error {
		return handle(context.WithValue(ctx, bodyKey{}, running{}), message)
	}
}
