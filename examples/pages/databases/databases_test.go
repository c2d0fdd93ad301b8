package databases

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

type Invoice struct {
	Number  int64 `gorm:"primaryKey"`
	OrderID string
}

func opened(db *gorm.DB) database { return func(fx.Lifecycle) (*gorm.DB, error) { return db, nil } }

func TestAnOrderIsBilledOnceInTheOtherDatabase(t *testing.T) {
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

func TestTwoInboxesShareADatabaseUnderTheirPrefixes(t *testing.T) {
	db := fxtest.OpenDB(t)
	var orders, audit *fxtest.Kit
	fxtest.App(t, fx.NopLogger, fxtest.Manual(), fxtest.Use(t, "orders", &orders), fxtest.Use(t, "audit", &audit),
		shared(opened(db), func(context.Context, handler.Message[OrderPlaced]) error { return nil }))
	orders.Accept(fxtest.JSON("orders.events", "order.placed", "m-1", OrderPlaced{OrderID: "o-1"}))
	audit.RequireNotAccepted("m-1")
	orders.RequireAccepted("m-1")
}

func TestInboxesWithoutFxAreCheckedAgainstEachOther(t *testing.T) {
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
