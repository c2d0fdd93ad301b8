package idempotent_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

type Payment struct {
	Reference string
	Cents     int
}

func ExampleWrap() {
	charge := func(_ context.Context, p Payment) error {
		fmt.Println("charged", p.Cents)
		return nil
	}
	store, err := memstore.New()
	if err != nil {
		panic(err)
	}
	handle, err := idempotent.Wrap(store, "charge", charge, idempotent.KeyBy(func(p Payment) (string, error) {
		return p.Reference, nil
	}))
	if err != nil {
		panic(err)
	}
	for range 3 { // the transport delivers it three times
		if err := handle(context.Background(), Payment{"r-1", 4_200}); err != nil {
			fmt.Println("deliver it again:", err)
		}
	}
	// Output: charged 4200
}

// One store and one set of options for all handlers of a channel.
func ExampleHandle() {
	store, err := memstore.New()
	if err != nil {
		panic(err)
	}
	orders, err := idempotent.New(store, idempotent.Configure(func(o *idempotent.Options) {
		o.Channel = "orders"
		o.Retention = 7 * 24 * time.Hour
	}))
	if err != nil {
		panic(err)
	}
	type order = handler.Message[Payment]
	bill, err := idempotent.Handle(orders, "bill", func(_ context.Context, m order) error {
		fmt.Println("billed", m.ID)
		return nil
	})
	if err != nil {
		panic(err)
	}
	mail, err := idempotent.Handle(orders, "mail", func(_ context.Context, m order) error {
		fmt.Println("mailed", m.ID)
		return nil
	}, idempotent.Configure(func(o *idempotent.Options) { o.Duplicates = idempotent.FailDuplicates }))
	if err != nil {
		panic(err)
	}
	m := order{Metadata: handler.Metadata{ID: "m-1"}}
	for range 2 {
		fmt.Println(bill(context.Background(), m), mail(context.Background(), m))
	}
	fmt.Println(orders.Counts().Processed, "processed,", orders.Counts().DuplicateSkipped, "skipped")
	// Output:
	// billed m-1
	// mailed m-1
	// <nil> <nil>
	// <nil> handler "mail" has processed message "m-1" before
	// 2 processed, 2 skipped
}
