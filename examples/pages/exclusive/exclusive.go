// Package exclusive is the code of docs/ordering.md.
package exclusive

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/processor"
)

// OrderPlaced is a payload.
type OrderPlaced struct{ OrderID string }

// options of an inbox of which one worker at a time processes.
func options(fulfilOrder func(context.Context, handler.Message[OrderPlaced]) error) []inbox.Option {
	return []inbox.Option{
		//page:begin options
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.Mode = processor.ModeExclusive
			o.Processor.HeartbeatInterval = 2 * time.Second
			o.Processor.WorkerTimeout = 10 * time.Second // the lease's length; at least three heartbeats
		}),
		//page:end
		inbox.Channel("orders.events", inbox.On("order.placed", inbox.Func("fulfil-order", fulfilOrder))),
	}
}

// byHand is a job that runs what is due, from a scheduler of one's own.
func byHand(ctx context.Context, ib *inbox.Inbox) (processor.Drained, error) {
	drained, err := ib.ProcessPending(ctx)
	if errors.Is(err, processor.ErrLockHeld) {
		return drained, nil // a worker is at it
	}
	return drained, err
}
