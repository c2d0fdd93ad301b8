package acceptor_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Each message has its own result. One that is invalid does not keep the others out.
func Example() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	orders, err := inbox.New("orders", db, inbox.Channel("orders", inbox.On("order.placed",
		inbox.Func("ship", func(context.Context, handler.Message[struct{}]) error { return nil }))))
	if err != nil {
		panic(err)
	}
	if err := orders.Migrate(ctx); err != nil {
		panic(err)
	}
	order := func(id string) handler.RawMessage {
		return handler.RawMessage{Channel: "orders", Type: "order.placed", ID: id, Content: []byte(`{}`)}
	}
	results, err := orders.Accept(ctx, order("order-1"), order("order-1"), order(""))
	fmt.Println(err) // joins what is wrong with messages; the others are stored
	for _, r := range results {
		if invalid := (*acceptor.InvalidError)(nil); errors.As(r.Err, &invalid) {
			fmt.Println("invalid:", invalid.Reason)
			continue
		}
		fmt.Println(r.Outcome, r.Handlers)
	}
	// Output:
	// inbox "orders": message "" is invalid: missing_id: message ID is missing
	// accepted 1
	// duplicate 0
	// invalid: missing_id
}
