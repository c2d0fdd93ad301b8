package gormstore

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Wrap wraps one handler that writes through tx, the transaction that holds the
// message's marker (contract 8.1):
//
//	handle, err := gormstore.Wrap(store, "orders-ship", func(ctx context.Context, tx *gorm.DB, o Order) error {
//		return tx.Create(&Shipment{OrderID: o.ID}).Error
//	})
//	err = handle(ctx, order) // nil: acknowledge it
//
// Options and what handle returns are those of idempotent.Wrap; what becomes of
// the transaction says Store.Run. tx is bound to ctx, and fn must not end it.
// With WithTx it is the caller's. A message without ID, where AllowMissingID
// lets it pass, has a transaction of the same kind, but no marker. Do not wrap
// handlers that are registered with an inbox: it remembers by itself.
func Wrap[T any](s *Store, handlerKey string, fn func(ctx context.Context, tx *gorm.DB, message T) error, opts ...idempotent.Option) (func(ctx context.Context, message T) error, error) {
	if err := check(s, fn == nil); err != nil {
		return nil, fmt.Errorf("idempotent handler %q: %w", handlerKey, err)
	}
	handle, err := idempotent.Wrap(s, handlerKey, inBody(s, handlerKey, fn), opts...)
	return fresh(handle), err
}

// Handle wraps one handler of a receiver that was made with s, see
// idempotent.Handle, and is otherwise Wrap.
func Handle[T any](r *idempotent.Receiver, s *Store, handlerKey string, fn func(ctx context.Context, tx *gorm.DB, message T) error, opts ...idempotent.Option) (func(ctx context.Context, message T) error, error) {
	if err := check(s, fn == nil); err != nil {
		return nil, fmt.Errorf("idempotent handler %q: %w", handlerKey, err)
	}
	handle, err := idempotent.Handle(r, handlerKey, inBody(s, handlerKey, fn), opts...)
	return fresh(handle), err
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

// bodyKey is where a body's context carries its session.
type bodyKey struct{}

// inBody gives fn the session of the body it is called in. A message without ID
// is no body of a run, and gets a transaction here.
func inBody[T any](s *Store, handlerKey string, fn func(ctx context.Context, tx *gorm.DB, message T) error) func(ctx context.Context, message T) error {
	call := func(ctx context.Context, session *gorm.DB, message T) error {
		return fn(ctx, session.Session(&gorm.Session{NewDB: true, Context: ctx}), message)
	}
	keyless := idempotent.Run{Key: idempotent.Key{HandlerKey: handlerKey}}
	return func(ctx context.Context, message T) error {
		if session, ok := ctx.Value(bodyKey{}).(*gorm.DB); ok && session != nil {
			return call(ctx, session, message)
		}
		_, err := s.do(ctx, work{Run: keyless, unmarked: true, body: func(ctx context.Context) error {
			return call(ctx, ctx.Value(bodyKey{}).(*gorm.DB), message)
		}})
		return err
	}
}

// fresh hides the session of a body that the call is made in.
func fresh[T any](handle func(ctx context.Context, message T) error) func(ctx context.Context, message T) error {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, message T) error {
		return handle(context.WithValue(ctx, bodyKey{}, (*gorm.DB)(nil)), message)
	}
}
