package models_test

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// The rows are GORM models. Tables leads a statement to the inbox's tables.
func Example() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	nothing := func(context.Context, handler.Message[struct{}]) error { return nil }
	orders, err := inbox.New("orders", db, inbox.Configure(func(o *inbox.Options) { o.TablePrefix = "shop_" }),
		inbox.Channel("orders", inbox.On("order.placed", inbox.Func("ship", nothing), inbox.Func("bill", nothing))))
	if err != nil {
		panic(err)
	}
	if err := orders.Migrate(ctx); err != nil {
		panic(err)
	}
	if _, err := orders.Accept(ctx, handler.RawMessage{Channel: "orders", Type: "order.placed", ID: "order-1",
		Content: []byte(`{}`)}); err != nil {
		panic(err)
	}

	var waiting []models.HandlerStatus
	if err := db.Clauses(orders.Tables()).Preload("Message").Where("completed_at IS NULL").Order("handler_key").
		Find(&waiting).Error; err != nil {
		panic(err)
	}
	for _, s := range waiting {
		fmt.Println(s.HandlerKey, "waits for", s.Message.Type, s.MessageID)
	}
	fmt.Println(orders.Tables().Messages())
	// Output:
	// bill waits for order.placed order-1
	// ship waits for order.placed order-1
	// shop_messages
}

// Where the application may not change the schema, another tool runs the SQL.
func ExampleSQL() {
	migrations, err := models.SQL("postgres", models.Naming{Schema: "shop"})
	if err != nil {
		panic(err)
	}
	for _, m := range migrations {
		fmt.Println(m.Version, m.Name, len(m.Statements()) > 10)
	}
	// Output: 1 0001_inbox.sql true
}
