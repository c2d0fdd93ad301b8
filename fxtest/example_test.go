package fxtest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

type OrderPlaced struct{ Total int }

func Example() {
	t := newExampleT() // your test's *testing.T
	defer t.end()

	open := false // whether the bank is open
	charge := func(ctx context.Context, m handler.Message[OrderPlaced]) error {
		if !open {
			return errors.New("the bank is closed")
		}
		fmt.Println("charged", m.Payload.Total)
		return nil
	}

	kit := fxtest.New(t, inbox.Channel("orders", inbox.On("order.placed", inbox.Func("charge", charge))))
	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", OrderPlaced{Total: 12}))

	kit.Process()
	status := kit.RequireFailed("o-1", "charge")
	fmt.Println("failed:", *status.LastError)

	open = true
	kit.Advance(2 * time.Second) // the first backoff is one to two seconds
	kit.Process()
	kit.RequireCompleted("o-1", "charge")
	// Output:
	// failed: the bank is closed
	// charged 12
}
