package gormstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// misusing runs a wrapped handler for each way: it has an effect, does what the way says, and
// returns nil whatever the result. None may leave anything, neither in a transaction of the store
// nor in a transaction of the caller, who commits it.
func misusing(t *testing.T, d *inboxtest.Database, ways map[string]func(tx *gorm.DB) error, want string) {
	r := newRig(t, d)
	inboxtest.Items(t, d)
	handle := wrap(t, r.store, func(ctx context.Context, tx *gorm.DB, o order) error {
		if err := ship(nil)(ctx, tx, o); err != nil {
			return err
		}
		if way := ways[o.ID]; way != nil {
			_ = way(tx)
		}
		return nil
	})
	for what := range ways {
		require.ErrorContains(t, handle(t.Context(), order{what}), want, what)
		var failed error
		_ = d.DB.Transaction(func(tx *gorm.DB) error {
			failed = handle(gormstore.WithTx(t.Context(), tx), order{what})
			require.NoError(t, handle(gormstore.WithTx(t.Context(), tx), order{"caller's"}), "it goes on")
			return nil
		})
		require.ErrorContains(t, failed, want, what)
		r.have("caller's")
		require.Empty(t, inboxtest.ItemNames(t, d), what)
		inboxtest.Exec(t, d.DB, "DELETE FROM effects")
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_markers")
	}
	require.NoError(t, handle(t.Context(), order{"good"}))
	r.have("good")
}

// Contract 8.2.
func TestHandlerIgnoringAFailedWriteIsNotAcknowledged(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		want := "handler swallowed an error of its transaction"
		if d.Dialect == "postgres" {
			want = "" // the error comes from the commit, or from releasing the savepoint
		}
		misusing(t, d, inboxtest.FailedWrites(), want)
	})
}

// Contract 8.2.
func TestWrappedHandlerCannotEndItsTransaction(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		misusing(t, d, inboxtest.TransactionControls(), "a handler must not begin or end the transaction it runs in")
	})
}

// A database that does not answer blocks no statement of the store without a limit, whatever the
// body's statements did.
func TestEveryStoreStatementHasADeadline(t *testing.T) {
	t.Parallel()
	d, endless := inboxtest.OnEndless(t)
	r := newRig(t, d)
	inboxtest.Items(t, d)
	require.Empty(t, endless.During(func() {
		for what, way := range inboxtest.FailedWrites() {
			_, err := r.store.Run(t.Context(), run(what), func(ctx context.Context) error { return way(handler.DB(ctx)) })
			_ = err // some of the ways succeed
		}
		r.handled(r.store, "good")
		_, err := r.store.Cleanup(context.Background(), time.Now())
		require.NoError(t, err)
		_, err = r.store.Processed(context.Background(), run("good").Key)
		require.NoError(t, err)
	}))
}
