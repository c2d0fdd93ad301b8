package idempotent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errHandler = errors.New("the handler failed")

type order struct{ Number string }

type message = handler.Message[order]

func withID(id string) message {
	return message{Metadata: handler.Metadata{ID: id, Type: "order.placed"}}
}

// nothing is a handler of messages of any type that does nothing.
func nothing[T any](context.Context, T) error { return nil }

func memory(t testing.TB, opts ...func(*memstore.Options)) *memstore.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}

func receiver(t testing.TB, store idempotent.Store, opts ...idempotent.Option) *idempotent.Receiver {
	t.Helper()
	r, err := idempotent.New(store, opts...)
	require.NoError(t, err)
	return r
}

func handle[T any](
	t testing.TB, r *idempotent.Receiver, key string, fn func(context.Context, T) error, opts ...idempotent.Option,
) func(context.Context, T) error {
	t.Helper()
	h, err := idempotent.Handle(r, key, fn, opts...)
	require.NoError(t, err)
	return h
}

func observe() (idempotent.Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return idempotent.Configure(func(o *idempotent.Options) { o.Logger = zap.New(core) }), logs
}

// storeFunc is a store whose Run is a function.
type storeFunc func(ctx context.Context, run idempotent.Run, body func(context.Context) error) (bool, error)

func (f storeFunc) Run(ctx context.Context, run idempotent.Run, body func(context.Context) error) (bool, error) {
	return f(ctx, run, body)
}
func (f storeFunc) Processed(context.Context, idempotent.Key) (bool, error) { return false, nil }
func (f storeFunc) Cleanup(context.Context, time.Time) (int64, error)       { return 0, nil }
