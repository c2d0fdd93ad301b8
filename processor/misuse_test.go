package processor_test

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

const good = "good"

// misused runs a transactional handler of each kind for one message per way, named after it, and
// for one more message that is good. The handler writes an item, does what the message's way says,
// and returns nil whatever the result. misused returns the errors of the statuses.
func misused(t *testing.T, d *inboxtest.Database, ways map[string]func(tx *gorm.DB) error) (errors map[string]string) {
	inboxtest.Items(t, d)
	one := func(kind string) func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
		return func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			if err := tx.Create(&inboxtest.Item{Name: kind + m.ID}).Error; err != nil {
				return err
			}
			if way := ways[m.ID]; way != nil {
				_ = way(tx)
			}
			return nil
		}
	}
	ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 1
		o.Processor.Concurrency = 1
	}), inboxtest.Handlers(
		inboxtest.Tx("alone", one("alone ")),
		inboxtest.Tx("group", one("group "), handler.TxGroup(5)),
		inbox.TxBatch("batch", 5, func(ctx context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
			for _, m := range batch {
				_ = one("batch ")(ctx, tx, m)
			}
			return nil
		})))
	ids := append(slices.Sorted(maps.Keys(ways)), good)
	inboxtest.Accept(t, ib, ids...)
	drained := inboxtest.Process(t, ib)
	for _, s := range inboxtest.Statuses(t, ib) {
		require.Equal(t, s.MessageID == good, s.CompletedAt != nil, "%s: %s", s.HandlerKey, s.MessageID)
	}
	require.Equal(t, processor.Drained{Picked: 3*len(ids) + drained.Released, Completed: 3, Poisoned: 3 * len(ways),
		Released: drained.Released}, drained, "what a slow disk held up is released and runs again")
	require.Equal(t, []string{"alone good", "batch good", "group good"}, inboxtest.ItemNames(t, d),
		"nothing else is committed")
	errors = map[string]string{}
	for _, s := range inboxtest.Statuses(t, ib) {
		if s.MessageID != good {
			require.Equal(t, 1, s.ErrorCount, "%s: it is charged", s.MessageID)
			errors[s.HandlerKey+": "+s.MessageID] = *s.LastError
		}
	}
	return errors
}

// Contract 5.11.
func TestHandlerIgnoringAFailedWriteCommitsNothing(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		for what, text := range misused(t, d, inboxtest.FailedWrites()) {
			require.NotEmpty(t, text, what)
			if d.Dialect == "sqlite" {
				require.Contains(t, text, "handler swallowed an error of its transaction", what)
			}
		}
	})
}

// Contract 5.11.
func TestHandlerCannotEndItsTransaction(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		for what, text := range misused(t, d, inboxtest.TransactionControls()) {
			require.Contains(t, text, "a handler must not begin or end the transaction it runs in", what)
		}
	})
}

// A failed write that a savepoint has undone does not count, whatever way it failed (contract
// 5.11).
func TestWriteUndoneByASavepointDoesNotFailTheHandler(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Items(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				for _, fails := range inboxtest.FailedWrites() {
					_ = tx.Transaction(func(tx *gorm.DB) error { _ = fails(tx); return errBoom })
				}
				return tx.Create(&inboxtest.Item{Name: m.ID}).Error
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib))
		require.Equal(t, []string{"1"}, inboxtest.ItemNames(t, d))
	})
}

// SQLite can roll back the whole transaction when a statement fails. What the handler writes after
// that must not be committed on its own.
func TestNothingIsWrittenAfterAStatementRollsBack(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		if d.Dialect != "sqlite" {
			return // PostgreSQL has no such statement
		}
		ways := map[string]func(tx *gorm.DB) error{}
		for name, text := range map[string]string{"Exec": "INSERT OR ROLLBACK INTO items (name) VALUES ('taken')",
			"Row": "INSERT OR ROLLBACK INTO items (name) VALUES ('taken') RETURNING id"} {
			ways[name] = func(tx *gorm.DB) error {
				if name == "Row" {
					_ = tx.Raw(text).Row().Scan(new(int64))
				} else {
					_ = tx.Exec(text).Error
				}
				return tx.Exec("INSERT INTO items (name) VALUES ('after " + name + "')").Error
			}
			ways[name+" in a nested transaction"] = func(tx *gorm.DB) error {
				_ = tx.Transaction(func(tx *gorm.DB) error { return tx.Exec(text).Error })
				return tx.Exec("INSERT INTO items (name) VALUES ('after nested " + name + "')").Error
			}
		}
		for what, text := range misused(t, d, ways) {
			require.Contains(t, text, "the handler's transaction was rolled back by a statement that failed", what)
		}
	})
}

// A database that does not answer blocks no statement of the inbox without a limit, however a
// handler's transaction ends.
func TestEveryStatementOfAnAttemptHasADeadline(t *testing.T) {
	t.Parallel()
	d, endless := inboxtest.OnEndless(t)
	inboxtest.Items(t, d)
	ways := inboxtest.FailedWrites()
	ways["a rollback by the database"] = func(tx *gorm.DB) error {
		return tx.Exec("INSERT OR ROLLBACK INTO items (name) VALUES ('taken')").Error
	}
	do := func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
		if way := ways[m.ID]; way != nil {
			return way(tx)
		}
		return nil
	}
	ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 1
	}), inboxtest.Handlers(
		inboxtest.Tx("alone", do), inboxtest.Tx("group", do, handler.TxGroup(5))))
	require.Empty(t, endless.During(func() {
		inboxtest.Accept(t, ib, append(slices.Sorted(maps.Keys(ways)), good)...)
		require.Equal(t, 2*len(ways)+2, inboxtest.Process(t, ib).Picked)
		_, err := ib.Cleanup(context.Background())
		require.NoError(t, err)
	}))
}

// A handler reads the same through the watched connection as without the watch.
func TestWatchedConnectionReadsTheSame(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		blob := "blob"
		if d.Dialect == "postgres" {
			blob = "bytea"
		}
		inboxtest.Exec(t, d.DB, "CREATE TABLE kinds (n bigint, f double precision, s varchar(10) NOT NULL, b "+blob+
			", ok boolean, at timestamp, absent text)")
		inboxtest.Exec(t, d.DB, "INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, NULL), (NULL, NULL, 'x', NULL, NULL, NULL, 'y')",
			int64(1)<<60, 1.5, "text", []byte{0, 255}, true, inboxtest.Noon)
		read := func(db *gorm.DB) any {
			var found []any
			var maps []map[string]any
			require.NoError(t, db.Table("kinds").Order("s").Find(&maps).Error)
			rows, err := db.Raw("SELECT * FROM kinds WHERE s <> ? ORDER BY s", "none").Rows()
			require.NoError(t, err)
			defer rows.Close()
			columns, err := rows.Columns()
			require.NoError(t, err)
			for rows.Next() {
				values, targets := make([]any, len(columns)), make([]any, len(columns))
				for i := range values {
					targets[i] = &values[i]
				}
				require.NoError(t, rows.Scan(targets...))
				types, err := rows.ColumnTypes()
				require.NoError(t, err)
				for _, c := range types {
					nullable, known := c.Nullable()
					length, limited := c.Length()
					found = append(found, c.Name(), c.DatabaseTypeName(), c.ScanType(), nullable, known, length, limited)
				}
				found = append(found, values)
			}
			require.NoError(t, rows.Err())
			var none []string
			require.ErrorIs(t, db.Raw("SELECT s FROM kinds WHERE s = 'none'").Row().Scan(new(string)), sql.ErrNoRows)
			require.NoError(t, db.Raw("SELECT s FROM kinds WHERE s = @s", sql.Named("s", "none")).Scan(&none).Error)
			return append(found, columns, maps, none)
		}
		want := read(d.DB)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				require.Equal(t, want, read(tx))
				require.Equal(t, want, read(tx.Session(&gorm.Session{PrepareStmt: true})))
				return nil
			})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib))
	})
}

// A handler that ends its transaction is charged, and its lane continues.
func TestLaneContinuesAfterAHandlerEndsItsTransaction(t *testing.T) {
	inboxtest.OnEachDriver(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Items(t, d)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
		}),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if err := tx.Create(&inboxtest.Item{Name: m.ID}).Error; err != nil {
					return err
				}
				if m.ID == "1" {
					_ = tx.Exec("ROLLBACK").Error
				}
				return nil
			}, handler.Ordered(), handler.SkipPoisoned())))
		inboxtest.Start(t, ib)
		for _, id := range []string{"1", "2"} {
			message := inboxtest.Message(id)
			message.OrderingKey = []byte("lane")
			_, err := ib.Accept(t.Context(), message)
			require.NoError(t, err)
		}
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "2", "h").CompletedAt != nil
		}, "the next of its lane is completed")
		require.True(t, inboxtest.Status(t, ib, "1", "h").IsPoisoned)
		require.Equal(t, []string{"2"}, inboxtest.ItemNames(t, d))
	})
}
