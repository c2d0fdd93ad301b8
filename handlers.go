package inbox

import (
	"context"
	"reflect"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// HandlerSpec declares one handler. Func, Tx, Batch and TxBatch make it; for a value of the Fx graph From, FromTx,
// FromBatch and FromTxBatch do.
type HandlerSpec struct {
	key string
	// handler is the declared handler. With graph it only has options and kind; the graph's value has the function.
	handler *handler.Handler
	graph   *fromGraph // nil unless the Fx graph provides the value
}

// Func declares a plain handler: a function or a method value, safe for concurrent use. Its effects happen at least
// once; use Tx for writes to the inbox's own database. Stored statuses belong to the key: do not change it without
// handler.LegacyKeys.
func Func[T any](
	key string, fn func(ctx context.Context, m handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.New(key, fn, opts...)}
}

// Tx declares a transactional handler: its writes through tx happen exactly once. Do not use it for calls to other
// services: the transaction stays open as long as they take (contract 5.11).
func Tx[T any](
	key string, fn func(ctx context.Context, tx *gorm.DB, m handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewTx(key, fn, opts...)}
}

// From declares a plain handler whose value of type H comes from the Fx graph. Without Fx use Func with a method value.
func From[H interface {
	Handle(context.Context, handler.Message[T]) error
}, T any](key string, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.New(key, h.Handle, opts...) },
		handler.New(key, func(context.Context, handler.Message[T]) error { return nil }, opts...))
}

// FromTx declares a transactional handler whose value of type H comes from the Fx graph. Without Fx use Tx with a
// method value.
func FromTx[H interface {
	Handle(context.Context, *gorm.DB, handler.Message[T]) error
}, T any](key string, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewTx(key, h.Handle, opts...) },
		handler.NewTx(key, func(context.Context, *gorm.DB, handler.Message[T]) error { return nil }, opts...))
}

// Batch declares a plain handler that takes up to size messages in one call, see handler.NewBatch. Do not use it where
// messages have no work in common: it only makes failures affect more messages.
func Batch[T any](
	key string, size int, fn func(ctx context.Context, batch []handler.Message[T]) error, opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewBatch(key, size, fn, opts...)}
}

// TxBatch declares a transactional handler that takes up to size messages in one call, see handler.NewTxBatch. Do not
// use it for calls to other services.
func TxBatch[T any](key string, size int, fn func(ctx context.Context, tx *gorm.DB, batch []handler.Message[T]) error,
	opts ...handler.Option,
) *HandlerSpec {
	return &HandlerSpec{key: key, handler: handler.NewTxBatch(key, size, fn, opts...)}
}

// FromBatch declares a plain batch handler whose value of type H comes from the Fx graph. Without Fx use Batch with a
// method value.
func FromBatch[H interface {
	HandleBatch(context.Context, []handler.Message[T]) error
}, T any](key string, size int, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewBatch(key, size, h.HandleBatch, opts...) },
		handler.NewBatch(key, size, func(context.Context, []handler.Message[T]) error { return nil }, opts...))
}

// FromTxBatch declares a transactional batch handler whose value of type H comes from the Fx graph. Without Fx use
// TxBatch with a method value.
func FromTxBatch[H interface {
	HandleBatch(context.Context, *gorm.DB, []handler.Message[T]) error
}, T any](key string, size int, opts ...handler.Option) *HandlerSpec {
	return graphSpec(func(h H) *handler.Handler { return handler.NewTxBatch(key, size, h.HandleBatch, opts...) },
		handler.NewTxBatch(key, size, func(context.Context, *gorm.DB, []handler.Message[T]) error { return nil }, opts...))
}

// graphSpec declares a handler whose value the Fx graph provides. declared is the same handler without that value.
func graphSpec[H any](build func(H) *handler.Handler, declared *handler.Handler) *HandlerSpec {
	spec := &HandlerSpec{key: declared.Key(), handler: declared}
	spec.graph = &fromGraph{typ: reflect.TypeFor[H](), fetch: func(value H) graphHandler {
		if isNil(value) {
			return graphHandler{spec: spec}
		}
		return graphHandler{spec, build(value)}
	}}
	return spec
}

// fromGraph is a handler whose value the Fx graph provides.
type fromGraph struct {
	typ   reflect.Type
	fetch any // a constructor that makes the graphHandler from the value
}

// graphHandler carries a handler from the graph to its inbox.
type graphHandler struct {
	spec    *HandlerSpec
	handler *handler.Handler // nil if its value is nil
}

func isNil(v any) bool {
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Invalid: // a nil interface
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return value.IsNil()
	}
	return false
}
