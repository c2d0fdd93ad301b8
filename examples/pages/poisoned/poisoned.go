// Package poisoned is the code of docs/poisoned.md.
package poisoned

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
)

// ShipmentWanted is a payload.
type ShipmentWanted struct{ OrderID, Address string }

// carrier asks somebody else's service and tells its answer.
type carrier func(ctx context.Context, orderID string) (status int, err error)

// ship tells apart what heals by itself and what does not.
func ship(ask carrier) func(context.Context, handler.Message[ShipmentWanted]) error {
	//page:begin steer
	return func(ctx context.Context, m handler.Message[ShipmentWanted]) error {
		if m.Payload.Address == "" {
			return handler.Poison(errors.New("no address")) // no retry fixes that
		}
		status, err := ask(ctx, m.Payload.OrderID)
		switch {
		case err != nil:
			return fmt.Errorf("ask the carrier: %w", err) // tried again, with backoff
		case status == http.StatusTooManyRequests:
			return handler.RetryAfter(time.Minute, errors.New("the carrier is busy"))
		case status == http.StatusAccepted:
			return handler.Snooze(10 * time.Second) // not ready yet: no failure, nothing is charged
		}
		return nil
	}
	//page:end
}

// patient stops trying while the carrier is down, instead of using up retries.
func patient(ask carrier) *inbox.HandlerSpec {
	//page:begin breaker
	return inbox.Func("ship", ship(ask),
		handler.CircuitBreaker(handler.Breaker{Failures: 5, OpenFor: 30 * time.Second}))
	//page:end
}

// acceptAgain accepts all that a channel has rejected, those rejected first
// first. It is for an endpoint or a command of the application.
func acceptAgain(ctx context.Context, ib *inbox.Inbox, actor ops.Actor, channel string) (ops.BulkResult, error) {
	o, err := ib.Ops()
	if err != nil {
		return ops.BulkResult{}, err
	}
	return o.ReAcceptMatching(ctx, actor, ops.RejectedFilter{Channel: channel}, ops.Bulk{})
}
