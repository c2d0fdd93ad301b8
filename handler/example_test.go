package handler_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

type Payment struct{ Cents int }

var errBankBusy = errors.New("the bank is busy")

// pay shows how a handler's error decides what becomes of the message.
func pay(_ context.Context, m handler.Message[Payment]) error {
	switch {
	case m.Payload.Cents <= 0: // no retry can help
		return handler.Poison(errors.New("there is nothing to pay"))
	case m.Payload.Cents > 1_000: // retried when the bank says, not after the backoff
		return handler.RetryAfter(time.Hour, errBankBusy)
	}
	return nil // any other error is retried after the backoff
}

func Example() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	billing, err := inbox.New("billing", db, inbox.Channel("payments", inbox.On("payment.due",
		inbox.Func("pay", pay, handler.MaxRetries(5), handler.Timeout(10*time.Second)))))
	if err != nil {
		panic(err)
	}
	if err := billing.Migrate(ctx); err != nil {
		panic(err)
	}
	for id, content := range map[string]string{"p-1": `{"Cents": 100}`, "p-2": `{"Cents": 5000}`, "p-3": `{"Cents": 0}`} {
		if _, err := billing.Accept(ctx, handler.RawMessage{Channel: "payments", Type: "payment.due", ID: id,
			Content: []byte(content)}); err != nil {
			panic(err)
		}
	}
	drained, err := billing.ProcessPending(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("completed:", drained.Completed)
	fmt.Println("failed, to be retried:", drained.Failed)
	fmt.Println("poisoned:", drained.Poisoned)
	// Output:
	// completed: 1
	// failed, to be retried: 1
	// poisoned: 1
}

// A middleware runs around each attempt, here for one handler. Options.Middleware has those of all handlers.
func ExampleUse() {
	noted := func(ctx context.Context, call handler.Call, next func(context.Context) error) error {
		err := next(ctx)
		fmt.Println(call.HandlerKey, call.Messages[0].ID, err)
		return err
	}
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	ctx := context.Background()
	billing, err := inbox.New("billing", db, inbox.Channel("payments", inbox.On("payment.due",
		inbox.Func("pay", pay, handler.Use(noted)))))
	if err != nil {
		panic(err)
	}
	if err := billing.Migrate(ctx); err != nil {
		panic(err)
	}
	if _, err := billing.Accept(ctx, handler.RawMessage{Channel: "payments", Type: "payment.due", ID: "p-1",
		Content: []byte(`{"Cents": 100}`)}); err != nil {
		panic(err)
	}
	if _, err := billing.ProcessPending(ctx); err != nil {
		panic(err)
	}
	// Output: pay p-1 <nil>
}
