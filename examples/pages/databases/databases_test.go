package databases

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

type Invoice struct {
	Number  int64 `gorm:"primaryKey"`
	OrderID string
}

func opened(db *gorm.DB) database { return func(fx.Lifecycle) (*gorm.DB, error) { return db, nil } }

func TestOrderIsBilledOnceInTheOtherDatabase(t *testing.T) {
	ordersDB, billingDB := fxtest.OpenDB(t), fxtest.OpenDB(t)
	require.NoError(t, billingDB.AutoMigrate(&Invoice{}))
	var orders, billing *fxtest.Kit
	fxtest.App(t, fx.NopLogger, fxtest.Manual(), fxtest.Use(t, "orders", &orders), fxtest.Use(t, "billing", &billing),
		service(opened(ordersDB), opened(billingDB), func(_ context.Context, tx *gorm.DB,
			m handler.Message[InvoiceWanted]) error {
			return tx.Create(&Invoice{OrderID: m.Payload.OrderID}).Error
		}))
	orders.Accept(fxtest.JSON("orders.events", "order.placed", "m-1", OrderPlaced{OrderID: "o-1"}))
	orders.Process()
	// As after a crash between the handler's return and its completion.
	require.NoError(t, ordersDB.Exec("UPDATE inbox_handler_statuses SET completed_at = NULL, outcome = ''").Error)
	orders.Process()
	orders.RequireCompleted("m-1", "bill-order")
	billing.Process()
	billing.RequireCompleted("order/m-1", "write-invoice")
	var invoices []Invoice
	require.NoError(t, billingDB.Find(&invoices).Error)
	require.Equal(t, []Invoice{{Number: 1, OrderID: "o-1"}}, invoices)
}

func TestTwoInboxesShareADatabaseByPrefix(t *testing.T) {
	db := fxtest.OpenDB(t)
	var orders, audit *fxtest.Kit
	fxtest.App(t, fx.NopLogger, fxtest.Manual(), fxtest.Use(t, "orders", &orders), fxtest.Use(t, "audit", &audit),
		shared(opened(db), func(context.Context, handler.Message[OrderPlaced]) error { return nil }))
	orders.Accept(fxtest.JSON("orders.events", "order.placed", "m-1", OrderPlaced{OrderID: "o-1"}))
	audit.RequireNotAccepted("m-1")
	orders.RequireAccepted("m-1")
}

// Contract 3.7.
func TestPoolHasAConnectionForEachHandlerAndFourMore(t *testing.T) {
	pool, err := fxtest.OpenDB(t).DB()
	require.NoError(t, err)
	sizePool(pool, inbox.DefaultOptions(), 2)
	require.Equal(t, 10+4+2*10, pool.Stats().MaxOpenConnections)
}

// TestDocumentedDSNsWorkWithBothSQLiteDrivers checks what the DSNs set and runs an inbox on each.
func TestDocumentedDSNsWorkWithBothSQLiteDrivers(t *testing.T) {
	for name, open := range map[string]func(string) (*gorm.DB, error){"Go": openSQLite, "C": openSQLiteInC} {
		t.Run(name, func(t *testing.T) {
			db, err := open(filepath.Join(t.TempDir(), "inbox.db"))
			if err != nil && strings.Contains(err.Error(), "CGO_ENABLED=0") {
				testenv.LeaveOut(t, "the SQLite driver in C", "CGO_ENABLED")
			}
			require.NoError(t, err)
			pool, err := db.DB()
			require.NoError(t, err)
			defer pool.Close()
			for pragma, want := range map[string]string{"journal_mode": "wal", "busy_timeout": "5000", "synchronous": "2",
				"foreign_keys": "1"} {
				var is string
				require.NoError(t, db.Raw("PRAGMA "+pragma).Scan(&is).Error)
				require.Equal(t, want, is, pragma)
			}
			other, err := pool.Conn(t.Context())
			require.NoError(t, err)
			defer other.Close()
			_, err = other.ExecContext(t.Context(), "PRAGMA busy_timeout = 0")
			require.NoError(t, err)
			require.NoError(t, db.Transaction(func(*gorm.DB) error {
				_, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE")
				require.ErrorContains(t, err, "locked", "_txlock: a transaction has the lock from its beginning")
				return nil
			}))

			ib, err := inbox.New("orders", db, inbox.Configure(func(o *inbox.Options) {
				o.Migrate, o.TablePrefix, o.Processor.MaxRetries = true, "orders_", 1
			}), inbox.Channel("c", inbox.On("order.placed", inbox.Func("fails",
				func(context.Context, handler.Message[OrderPlaced]) error { return errors.New("no") }))))
			require.NoError(t, err)
			require.NoError(t, ib.Migrate(t.Context()))
			_, err = ib.Accept(t.Context(), fxtest.JSON("c", "order.placed", "m-1", OrderPlaced{OrderID: "o-1"}))
			require.NoError(t, err)
			_, err = ib.ProcessPending(t.Context())
			require.NoError(t, err)
			require.NoError(t, ib.Pause(t.Context(), "fails"))
			paused, statuses, poisoned, err := read(t.Context(), db, ib)
			require.NoError(t, err)
			require.EqualValues(t, 1, paused)
			require.Len(t, poisoned, 1)
			require.Equal(t, "m-1", statuses[0].Message.ID)
		})
	}
}

func TestInboxesWithoutFxAreCheckedForConflicts(t *testing.T) {
	nothing := func(context.Context, handler.Message[OrderPlaced]) error { return nil }
	declared := func(key string) []inbox.Option {
		return []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inbox.Channel("c", inbox.On("order.placed", inbox.Func(key, nothing)))}
	}
	stop, err := plain(t.Context(), fxtest.OpenDB(t), fxtest.OpenDB(t), declared("a"), declared("b"))
	require.NoError(t, err)
	require.NoError(t, stop(t.Context()))
	_, err = plain(t.Context(), fxtest.OpenDB(t), fxtest.OpenDB(t), declared("a"), declared("a"))
	require.ErrorContains(t, err, `handler key "a" is registered twice`)
	db := fxtest.OpenDB(t)
	_, err = plain(t.Context(), db, db, declared("a"), declared("b"))
	require.ErrorContains(t, err, "use the same database with the same table prefix")
}
