package ops_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// An operator finds what is poisoned, and retries it after a fix.
func Example() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	broken := true
	orders, err := inbox.New("orders", db, inbox.Channel("orders", inbox.On("order.placed",
		inbox.Func("ship", func(context.Context, handler.Message[struct{}]) error {
			if broken {
				return handler.Poison(errors.New("no such street"))
			}
			return nil
		}))))
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
	if _, err := orders.ProcessPending(ctx); err != nil {
		panic(err)
	}

	o, err := orders.Ops() // another program calls ops.New with the database
	if err != nil {
		panic(err)
	}
	page, err := o.List(ctx, ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 50)
	if err != nil {
		panic(err)
	}
	broken = false
	for _, s := range page.Items {
		fmt.Println(s.MessageID, s.HandlerKey, s.LastError)
		if err := o.Retry(ctx, "alice@example.org", s.Ref()); err != nil { // ErrStale if someone else was faster
			panic(err)
		}
	}
	drained, err := orders.ProcessPending(ctx)
	fmt.Println("completed:", drained.Completed, err)
	audit, err := o.Audit(ctx, ops.AuditFilter{}, "", 50)
	if err != nil {
		panic(err)
	}
	fmt.Println(audit.Items[0].Actor, audit.Items[0].Action)
	// Output:
	// order-1 ship poison: no such street
	// completed: 1 <nil>
	// alice@example.org retry
}

// A report reads the read replica, and says how far that is behind.
func ExampleOps_Reader() {
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
	replica := db // a report opens the replica's DSN
	o, err := orders.Ops(func(o *ops.Options) { o.Replica = replica })
	if err != nil {
		panic(err)
	}
	r, from := o.Reader(ctx)
	page, err := r.List(ctx, ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 50)
	fmt.Println(from)
	fmt.Println(len(page.Items), err)
	// Output:
	// Read from a replica: its delay is unknown, because no worker runs
	// 0 <nil>
}
