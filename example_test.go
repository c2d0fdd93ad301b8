package inbox_test

import (
	"context"
	"fmt"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

type OrderPlaced struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

type Stock struct {
	SKU      string
	Quantity int
}

// reserveStock writes in the transaction that completes the message, and so exactly once.
func reserveStock(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	return tx.Model(&Stock{}).Where("sku = ?", m.Payload.SKU).
		Update("quantity", gorm.Expr("quantity - ?", m.Payload.Quantity)).Error
}

// A message that comes twice is handled once. A channel with inbox.Kafka takes its messages from topics instead.
func Example() {
	db, closeDB := testenv.ExampleDB() // the application's *gorm.DB
	defer closeDB()
	ctx := context.Background()

	orders, err := inbox.New("orders", db,
		inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 12 }),
		inbox.Channel("orders.events", inbox.On("order.placed", inbox.Tx("reserve-stock", reserveStock))))
	if err != nil {
		panic(err)
	}
	if err := orders.Migrate(ctx); err != nil {
		panic(err)
	}
	if err := db.AutoMigrate(&Stock{}); err != nil {
		panic(err)
	}
	db.Create(&Stock{SKU: "hat", Quantity: 10})

	for range 2 { // as a producer does that is not sure
		results, err := orders.Accept(ctx, handler.RawMessage{Channel: "orders.events", Type: "order.placed", ID: "order-1",
			Content: []byte(`{"sku": "hat", "quantity": 2}`)})
		if err != nil {
			panic(err)
		}
		fmt.Println(results[0].Outcome)
	}
	// A service calls orders.Start and orders.Stop. This runs once what is due.
	if _, err := orders.ProcessPending(ctx); err != nil {
		panic(err)
	}
	var hats Stock
	db.Take(&hats)
	fmt.Println("hats left:", hats.Quantity)
	// Output:
	// accepted
	// duplicate
	// hats left: 8
}

// ShipOrder is a handler that needs something of the application.
type ShipOrder struct{ shipped chan string }

func NewShipOrder(shipped chan string) *ShipOrder { return &ShipOrder{shipped} }

func (s *ShipOrder) Handle(_ context.Context, m handler.Message[OrderPlaced]) error {
	s.shipped <- m.ID
	return nil
}

// In an Fx application the inbox starts and stops with it, and handlers come from the graph.
func ExampleModule() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()

	var orders *inbox.Inbox
	shipped := make(chan string)
	app := fx.New(fx.NopLogger,
		fx.Supply(fx.Annotate(db, fx.ResultTags(`name:"orders"`)), shipped),
		fx.Provide(NewShipOrder),
		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inbox.Channel("orders.events", inbox.On("order.placed", inbox.From[*ShipOrder]("ship-order")))),
		fx.Populate(fx.Annotate(&orders, fx.ParamTags(`name:"orders"`))))
	if err := app.Start(ctx); err != nil {
		panic(err)
	}
	if _, err := orders.Accept(ctx, handler.RawMessage{Channel: "orders.events", Type: "order.placed", ID: "order-1",
		Content: []byte(`{"sku": "hat", "quantity": 2}`)}); err != nil {
		panic(err)
	}
	fmt.Println("shipped", <-shipped)
	if err := app.Stop(ctx); err != nil {
		panic(err)
	}
	// Output: shipped order-1
}

// A message that is accepted in a transaction exists if and only if the transaction is committed.
func ExampleInbox_AcceptTx() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	if err := db.AutoMigrate(&Stock{}); err != nil {
		panic(err)
	}
	orders, err := inbox.New("orders", db, inbox.Channel("stock", inbox.On("hats.bought",
		inbox.Func("announce", func(_ context.Context, m handler.Message[Stock]) error {
			fmt.Println("new in stock:", m.Payload.Quantity, m.Payload.SKU)
			return nil
		}))))
	if err != nil {
		panic(err)
	}
	if err := orders.Migrate(ctx); err != nil {
		panic(err)
	}
	err = db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&Stock{SKU: "hat", Quantity: 10}).Error; err != nil {
			return err
		}
		_, err := orders.AcceptTx(ctx, tx, handler.RawMessage{Channel: "stock", Type: "hats.bought", ID: "delivery-1",
			Content: []byte(`{"SKU": "hats", "Quantity": 10}`)})
		return err
	})
	if err != nil {
		panic(err)
	}
	// Where the inbox is started, call Wake on the receipt that AcceptTx returns.
	if _, err := orders.ProcessPending(ctx); err != nil {
		panic(err)
	}
	// Output: new in stock: 10 hats
}
