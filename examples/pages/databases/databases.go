// Package databases is the code of docs/databases.md.
package databases

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"go.uber.org/fx"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

type (
	// OrderPlaced and InvoiceWanted are payloads.
	OrderPlaced   struct{ OrderID string }
	InvoiceWanted struct{ OrderID string }

	// database opens one.
	database = func(lc fx.Lifecycle) (*gorm.DB, error)
)

//page:begin bill

// Bill hands an order over to the inbox of another database.
type Bill struct{ billing *inbox.Inbox }

func NewBill(billing *inbox.Inbox) *Bill { return &Bill{billing} }

func (b *Bill) Handle(ctx context.Context, m handler.Message[OrderPlaced]) error {
	message, err := invoiceWanted("order/"+m.ID, m.Payload.OrderID) // the same ID each time this runs
	if err != nil {
		return err
	}
	results, err := b.billing.Accept(ctx, message)
	if err != nil {
		return err
	}
	return results[0].Err // nil also for a duplicate
}

//page:end

// service has an inbox in each of two databases.
func service(openOrdersDB, openBillingDB database,
	writeInvoice func(context.Context, *gorm.DB, handler.Message[InvoiceWanted]) error,
) fx.Option {
	return fx.Options(
		//page:begin modules
		fx.Provide(
			fx.Annotate(openOrdersDB, fx.ResultTags(`name:"orders"`)),
			fx.Annotate(openBillingDB, fx.ResultTags(`name:"billing"`)),
			fx.Annotate(NewBill, fx.ParamTags(`name:"billing"`)), // the inbox, a *inbox.Inbox
		),
		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inbox.Channel("orders.events", inbox.On("order.placed", inbox.From[*Bill]("bill-order"))),
		),
		inbox.Module("billing",
			inbox.Configure(func(o *inbox.Options) {
				o.Migrate = true
				o.Processor.Concurrency = 2
			}),
			inbox.Channel("billing.commands", inbox.On("invoice.wanted", inbox.Tx("write-invoice", writeInvoice))),
		),
		//page:end
	)
}

// shared has two inboxes in one database, which is in the graph without a name.
func shared(openDB database, handle func(context.Context, handler.Message[OrderPlaced]) error) fx.Option {
	return fx.Options(
		//page:begin prefixes
		fx.Provide(openDB), // the one *gorm.DB
		inbox.Module("orders", inbox.Configure(func(o *inbox.Options) {
			o.UnnamedDB = true
			o.TablePrefix = "orders_"
			o.Migrate = true
		}),
			inbox.Channel("orders.events", inbox.On("order.placed", inbox.Func("fulfil-order", handle)))),
		//page:end
		inbox.Module("audit", inbox.Configure(func(o *inbox.Options) {
			o.UnnamedDB = true
			o.TablePrefix = "audit_"
			o.Migrate = true
		}),
			inbox.Channel("audit.events", inbox.On("order.placed", inbox.Func("note-order", handle)))),
	)
}

//page:begin pool

// sizePool has a pool serve one inbox, of which so many channels are Inline or Direct.
func sizePool(pool *sql.DB, o inbox.Options, inlineOrDirect int) {
	size := o.Processor.Concurrency + 4 + inlineOrDirect*o.PartitionConcurrency
	pool.SetMaxOpenConns(size)
	pool.SetMaxIdleConns(size)
}

//page:end

// plain makes and starts inboxes without Fx.
func plain(
	ctx context.Context, ordersDB, billingDB *gorm.DB, orderOptions, billingOptions []inbox.Option,
) (stop func(context.Context) error, err error) {
	orders, err := inbox.New("orders", ordersDB, orderOptions...)
	if err != nil {
		return nil, err
	}
	billing, err := inbox.New("billing", billingDB, billingOptions...)
	if err != nil {
		return nil, err
	}
	if err := inbox.Validate(orders, billing); err != nil { // what Fx modules check by themselves
		return nil, err
	}
	if err := orders.Start(ctx); err != nil {
		return nil, err
	}
	if err := billing.Start(ctx); err != nil {
		return nil, errors.Join(err, orders.Stop(ctx))
	}
	return func(ctx context.Context) error { return errors.Join(billing.Stop(ctx), orders.Stop(ctx)) }, nil
}

//page:begin sqlite

// openSQLite uses the driver in Go, which the package modernc.org/sqlite registers.
func openSQLite(file string) (*gorm.DB, error) {
	return gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + file + "?_pragma=journal_mode(WAL)" +
		"&_pragma=busy_timeout(5000)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_txlock=immediate"})
}

// openSQLiteInC uses GORM's default driver, mattn/go-sqlite3, which needs a C compiler.
func openSQLiteInC(file string) (*gorm.DB, error) {
	return gorm.Open(sqlite.Open("file:" + file + "?_journal_mode=WAL" +
		"&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate"))
}

//page:end

// read reads an inbox's tables in GORM's two styles.
func read(ctx context.Context, db *gorm.DB, ib *inbox.Inbox) (
	paused int64, statuses, poisoned []models.HandlerStatus, _ error,
) {
	//page:begin read
	tables := ib.Tables()
	err := errors.Join(
		db.Clauses(tables).Preload("Message").Where("completed_at IS NULL AND error_count > 0").Find(&statuses).Error,
		db.Clauses(tables).Model(&models.Handler{}).Where("paused").Count(&paused).Error)
	poisoned, failed := gorm.G[models.HandlerStatus](db, tables).Where("is_poisoned AND completed_at IS NULL").Find(ctx)
	//page:end
	return paused, statuses, poisoned, errors.Join(err, failed)
}

func invoiceWanted(id, order string) (handler.RawMessage, error) {
	if order == "" {
		return handler.RawMessage{}, errors.New("an order without ID")
	}
	return handler.RawMessage{Channel: "billing.commands", Type: "invoice.wanted", ID: id, ContentType: "application/json",
		Content: fmt.Appendf(nil, `{"OrderID":%q}`, order)}, nil
}
