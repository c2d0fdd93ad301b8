package inbox_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// otherDatabase opens a new database of the same dialect.
func otherDatabase(t *testing.T, d *inboxtest.Database) *gorm.DB {
	switch d.Dialect {
	case "postgres":
		return testenv.Postgres(t)
	case "mysql":
		return testenv.OpenMySQL(t, testenv.AnyMySQLDSN(t))
	}
	return testenv.SQLite(t)
}

// namedInbox makes an inbox with tables.
func namedInbox(t *testing.T, name string, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	ib, err := inbox.New(name, db, append(opts, inboxtest.Handlers(nothing("h-"+name)))...)
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(context.Background()))
	return ib
}

// acceptIn accepts a message in a transaction of db.
func acceptIn(ib *inbox.Inbox, db *gorm.DB, id string) error {
	return db.Transaction(func(tx *gorm.DB) error {
		_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message(id))
		return err
	})
}

// Contract 3.4, 4.1.
func TestAcceptTxRefusesATransactionOfAnotherDatabase(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		theirs, same, bare, unnamed := otherDatabase(t, d), otherDatabase(t, d), otherDatabase(t, d), otherDatabase(t, d)
		orders, billing := namedInbox(t, "orders", d.DB), namedInbox(t, "billing", theirs)
		twin := namedInbox(t, "orders", same)
		migrations, err := models.SQL(d.Dialect, models.Naming{})
		require.NoError(t, err)
		for _, statement := range migrations[0].Statements() {
			require.NoError(t, unnamed.Exec(statement).Error)
		}
		for range 2 {
			err := acceptIn(orders, theirs, "1")
			require.ErrorIs(t, err, models.ErrOtherInbox)
			require.ErrorContains(t, err,
				`inbox "orders": accept in transaction: the transaction does not lead to this inbox's tables`)
			require.ErrorContains(t, err, `it leads to those of inbox "billing", not of "orders"`)
			require.ErrorContains(t, acceptIn(billing, d.DB, "1"), `it leads to those of inbox "orders", not of "billing"`)

			err = acceptIn(orders, same, "1")
			require.ErrorIs(t, err, models.ErrOtherInbox)
			require.ErrorContains(t, err, "in another database")
			require.ErrorIs(t, acceptIn(orders, bare, "1"), models.ErrSchemaMissing)
			require.ErrorIs(t, acceptIn(orders, unnamed, "1"), models.ErrOtherInbox)
		}
		for _, ib := range []*inbox.Inbox{orders, billing, twin} {
			require.Zero(t, inboxtest.CountMessages(t, ib))
		}
		require.NoError(t, acceptIn(orders, d.DB, "1"))
		require.Equal(t, 1, inboxtest.CountMessages(t, orders))
	})
}

func TestAcceptTxAllowsTransactionOfAnotherPool(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		orders, other := namedInbox(t, "orders", d.DB), d.Another(t)
		require.NoError(t, acceptIn(orders, other, "1"))
		require.NoError(t, acceptIn(orders, other, "2"))
		inboxtest.Start(t, orders)
		require.NoError(t, acceptIn(orders, other, "3"))
		require.Equal(t, 3, inboxtest.CountMessages(t, orders))
	})
}

// Contract 4.1: with the option Schema no statement depends on the search path.
func TestAcceptTxUsesSchemaDespiteSearchPath(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		in := func(schema string) *inbox.Inbox {
			return namedInbox(t, schema, d.DB, inbox.Configure(func(o *inbox.Options) { o.Schema = schema }))
		}
		ours, theirs := in("ours"), in("theirs")
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, tx.Exec("SET LOCAL search_path = theirs").Error)
			_, err := ours.AcceptTx(t.Context(), tx, inboxtest.Message("1"))
			return err
		}))
		require.Equal(t, 1, inboxtest.CountMessages(t, ours))
		require.Zero(t, inboxtest.CountMessages(t, theirs))
	})
}

// Contract 4.1: the search path of a transaction, or of a handler, leads to no other inbox's tables.
func TestSearchPathNeverSelectsAnotherInbox(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		theirs := namedInbox(t, "orders", d.DB, inbox.Configure(func(o *inbox.Options) { o.Schema = "theirs" }))
		away := func(tx *gorm.DB) error { return tx.Exec("SET LOCAL search_path = theirs").Error }
		acceptAway := func(ib *inbox.Inbox, id string) error {
			return d.DB.Transaction(func(tx *gorm.DB) error {
				require.NoError(t, away(tx))
				_, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message(id))
				return err
			})
		}
		ours, err := inbox.New("orders", d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Tx("h",
			func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error { return away(tx) })))
		require.NoError(t, err)
		require.NoError(t, ours.Migrate(t.Context()))
		require.NoError(t, acceptIn(ours, d.DB, "1"), "before any other use")
		require.NoError(t, acceptAway(ours, "2"))
		inboxtest.Start(t, ours)
		require.NoError(t, acceptAway(ours, "3"))
		inboxtest.Eventually(t, func() bool { return ours.Counters().Processed == 3 }, "the handler runs")
		require.Equal(t, 3, inboxtest.CountMessages(t, ours))
		for _, id := range []string{"1", "2", "3"} {
			require.NotNil(t, inboxtest.Status(t, ours, id, "h").CompletedAt)
		}
		require.Zero(t, inboxtest.CountMessages(t, theirs))
	})
}

// The transaction holds the pool's only connection, so a check on another connection would wait forever.
func TestAcceptTxWithoutStartNeedsNoSecondConnection(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		orders := namedInbox(t, "orders", d.DB)
		pool, err := d.DB.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(1)
		require.NoError(t, acceptIn(orders, d.DB, "1"))
		require.NoError(t, acceptIn(orders, d.DB, "2"))
		require.Equal(t, 2, inboxtest.CountMessages(t, orders))
	})
}

// Contract 3.3, 3.4: calls without Start check the tables as Start does.
func TestWithoutStartTheTablesAreChecked(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := context.Background()
		calls := map[string]func(*inbox.Inbox) error{
			"Accept":         func(ib *inbox.Inbox) error { _, err := ib.Accept(ctx, inboxtest.Message("2")); return err },
			"AcceptTx":       func(ib *inbox.Inbox) error { return acceptIn(ib, d.DB, "2") },
			"ProcessPending": func(ib *inbox.Inbox) error { _, err := ib.ProcessPending(ctx); return err },
			"Cleanup":        func(ib *inbox.Inbox) error { _, err := ib.Cleanup(ctx); return err },
			"Pause":          func(ib *inbox.Inbox) error { return ib.Pause(ctx, "h") },
			"AcceptRejected": func(ib *inbox.Inbox) error {
				_, err := ib.AcceptRejected(ctx, "00000000-0000-7000-8000-000000000000")
				return err
			},
		}
		fresh := func(name string) *inbox.Inbox {
			ib, err := inbox.New(name, d.DB, inboxtest.Handlers(nothing("h")))
			require.NoError(t, err)
			return ib
		}
		refused := func(name string, want error) {
			for call, do := range calls {
				require.ErrorIs(t, do(fresh(name)), want, call)
			}
		}
		refused("orders", models.ErrSchemaMissing)
		orders := namedInbox(t, "orders", d.DB)
		inboxtest.Accept(t, orders, "1")
		refused("other", models.ErrOtherInbox)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = '0' WHERE "key" = 'schema_version'`)
		refused("orders", models.ErrSchemaMissing)
		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = '99' WHERE "key" = 'schema_version'`)
		require.NoError(t, calls["Accept"](fresh("orders")))
		require.Equal(t, 2, inboxtest.CountMessages(t, orders))

		// A check that succeeded is not repeated.
		inboxtest.Exec(t, d.DB, `UPDATE inbox_meta SET "value" = 'other' WHERE "key" = 'name'`)
		for _, call := range []string{"Accept", "AcceptTx", "ProcessPending", "Cleanup"} {
			require.NoError(t, calls[call](orders), call)
		}
	})
}
