package gormstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

type order struct{ ID string }

func (o order) MessageID() string   { return o.ID }
func (o order) MessageType() string { return "order.placed" }

// ship returns a handler that has one effect through its transaction and returns err.
func ship(err error) func(ctx context.Context, tx *gorm.DB, o order) error {
	return func(ctx context.Context, tx *gorm.DB, o order) error {
		if tx.Statement.Context != ctx {
			return errors.New("tx is not bound to ctx")
		}
		if failed := tx.Exec(`INSERT INTO effects VALUES (?)`, o.ID).Error; failed != nil {
			return failed
		}
		return err
	}
}

func wrap(
	t *testing.T, s *gormstore.Store, fn func(context.Context, *gorm.DB, order) error, opts ...idempotent.Option,
) func(context.Context, order) error {
	t.Helper()
	handle, err := gormstore.Wrap(s, "h", fn, opts...)
	require.NoError(t, err)
	return handle
}

func TestWrappedHandlerWritesInTheTransactionOfItsMarker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		require.ErrorIs(t, wrap(t, r.store, ship(errBody))(t.Context(), order{"1"}), errBody)
		r.have()
		handle := wrap(t, r.store, ship(nil))
		for range 3 {
			require.NoError(t, handle(t.Context(), order{"1"}))
		}
		r.have("1")
		require.ErrorIs(t, d.DB.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, handle(gormstore.WithTx(t.Context(), tx), order{"2"}))
			return errBody
		}), errBody)
		r.have("1")

		var unnamed *idempotent.IDError
		require.ErrorAs(t, handle(t.Context(), order{}), &unnamed)
		r.have("1")
	})
}

func TestHandlersOfOneReceiverAreIndependent(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		receiver, err := idempotent.New(r.store)
		require.NoError(t, err)
		for _, key := range []string{"a", "b"} {
			handle, err := gormstore.Handle(receiver, r.store, key, ship(nil))
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, handle(t.Context(), order{"1"}))
			}
		}
		r.have("1", "1")
		require.EqualValues(t, 2, receiver.Counts().Processed)
		require.EqualValues(t, 2, receiver.Counts().DuplicateSkipped)
	})
}

func TestMessageWithoutIDHasATransactionToo(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		handle := wrap(t, r.store, ship(nil), idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))
		require.ErrorIs(t, wrap(t, r.store, ship(errBody), idempotent.Configure(func(o *idempotent.Options) {
			o.AllowMissingID = true
		}))(t.Context(), order{}), errBody)
		require.Empty(t, r.effects())
		for range 2 {
			require.NoError(t, handle(t.Context(), order{}))
		}
		require.Equal(t, []string{"", ""}, r.effects())
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			ctx := gormstore.WithTx(t.Context(), tx)
			require.ErrorIs(t, wrap(t, r.store, ship(errBody), idempotent.Configure(func(o *idempotent.Options) {
				o.AllowMissingID = true
			}))(ctx, order{}), errBody)
			return handle(ctx, order{})
		}))
		require.Equal(t, []string{"", "", ""}, r.effects())
		require.Empty(t, r.markers())
	})
}

// The two transactions are open at once, which SQLite's single writer does not allow.
func TestNestedWrappedHandlerHasASeparateTransaction(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		handle := wrap(t, r.store, ship(nil), idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))
		_, err := r.store.Run(t.Context(), run("1"), func(ctx context.Context) error {
			require.NoError(t, handle(ctx, order{}))
			require.NoError(t, handle(ctx, order{"2"}))
			require.NoError(t, handle(gormstore.WithTx(ctx, handler.DB(ctx)), order{"3"}))
			return errBody
		})
		require.ErrorIs(t, err, errBody)
		require.Equal(t, []string{"", "2"}, r.effects())
		require.Equal(t, []string{"2"}, r.markers())
	})
}

func TestUnusableWrappersAreErrors(t *testing.T) {
	t.Parallel()
	_, err := gormstore.Wrap(nil, "h", ship(nil))
	require.EqualError(t, err, `idempotent handler "h": the *gormstore.Store is nil: there would be no transaction`)
	s := new(gormstore.Store)
	_, err = gormstore.Wrap[order](s, "h", nil)
	require.EqualError(t, err, `idempotent handler "h": its function is nil`)
	handle, err := gormstore.Wrap(s, "", ship(nil))
	require.ErrorContains(t, err, "handler key is empty")
	require.Nil(t, handle)
	receiver, err := idempotent.New(nil)
	require.NoError(t, err)
	_, err = gormstore.Handle(receiver, nil, "h", ship(nil))
	require.ErrorContains(t, err, "is nil")
	_, err = gormstore.Handle(receiver, s, "h", ship(nil))
	require.ErrorContains(t, err, `idempotent handler "h": the receiver was not made with this *gormstore.Store`)
	require.ErrorContains(t, err, "it has no store")
	receiver, err = idempotent.New(new(gormstore.Store))
	require.NoError(t, err)
	handle, err = gormstore.Handle(receiver, s, "h", ship(nil))
	require.ErrorContains(t, err, "was not made with this *gormstore.Store")
	require.Nil(t, handle)
}

// wrapping is a store that contains another one, as for counting or tracing.
type wrapping struct{ idempotent.Store }

// What a store in memory forgets at the end of the process would be done again.
func TestHandlerWithAnotherStoreIsNotCalled(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		handlerOf := func(store idempotent.Store, fn func(context.Context, *gorm.DB, order) error) (func(context.Context,
			order) error, *idempotent.Receiver) {
			receiver, err := idempotent.New(store, idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))
			require.NoError(t, err)
			handle, err := gormstore.Handle(receiver, r.store, "h", fn)
			require.NoError(t, err)
			return handle, receiver
		}
		memory, err := memstore.New()
		require.NoError(t, err)
		other, _ := handlerOf(memory, ship(nil))
		for range 2 {
			require.ErrorContains(t, other(t.Context(), order{"1"}), "was not made with this *gormstore.Store")
		}
		r.have()
		foreign, _ := handlerOf(wrapping{open(t, d.DB)}, ship(nil))
		require.ErrorContains(t, foreign(t.Context(), order{"1"}), "was not made with this *gormstore.Store",
			"another store on the same tables may be of another database as well")
		r.have()

		// A message without an ID has effects, but not those of the handlers that its handler
		// calls.
		require.NoError(t, other(t.Context(), order{}))
		require.Equal(t, []string{""}, r.effects())
		var inner error
		outer, _ := handlerOf(memory, func(ctx context.Context, _ *gorm.DB, _ order) error {
			inner = other(ctx, order{"2"})
			return nil
		})
		require.NoError(t, outer(t.Context(), order{}))
		require.ErrorContains(t, inner, "was not made with this *gormstore.Store")
		require.Equal(t, []string{""}, r.effects())

		inboxtest.Exec(t, d.DB, `DELETE FROM effects`)
		handle, receiver := handlerOf(wrapping{r.store}, ship(nil))
		for range 2 {
			require.NoError(t, handle(t.Context(), order{"3"}))
		}
		r.have("3")
		require.Equal(t, idempotent.Counts{Processed: 1, DuplicateSkipped: 1}, receiver.Counts())
		require.Equal(t, wrapping{r.store}, receiver.Store())
	})
}

func TestHandlerWithoutARetentionIsRememberedFor24Hours(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		r := newRig(t, d, func(o *gormstore.Options) { o.Clock = clock })
		for id, c := range map[string]struct {
			opts []idempotent.Option
			want time.Duration
		}{"1": {nil, 24 * time.Hour}, "2": {[]idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
			o.Retention = time.Hour
		})}, time.Hour}} {
			require.NoError(t, wrap(t, r.store, ship(nil), c.opts...)(t.Context(), order{id}))
			var marker models.Marker
			require.NoError(t, d.DB.Where("message_id = ?", id).Take(&marker).Error)
			require.Equal(t, c.want, marker.ExpiresAt.Sub(marker.ProcessedAt))
			require.True(t, marker.ProcessedAt.Equal(inboxtest.Noon))
		}
	})
}
