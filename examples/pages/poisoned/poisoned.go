// Package poisoned is the code of docs/poisoned.md.
package poisoned

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox"
)

// ShipmentWanted is a payload.
type ShipmentWanted struct{ OrderID, Address string }

// carrier asks somebody else's service and tells its answer.
type carrier func(ctx context.Context, orderID string) (status int, err error)

// ship tells apart what heals by itself and what does not.
func ship(ask carrier) func(context.Context, inbox.Message[ShipmentWanted]) error {
	//page:begin steer
	return func(ctx context.Context, m inbox.Message[ShipmentWanted]) error {
		if m.Payload.Address == "" {
			return inbox.Poison(errors.New("no address")) // no retry mends that
		}
		status, err := ask(ctx, m.Payload.OrderID)
		switch {
		case err != nil:
			return fmt.Errorf("ask the carrier: %w", err) // tried again, with backoff
		case status == http.StatusTooManyRequests:
			return inbox.RetryAfter(time.Minute, errors.New("the carrier is busy"))
		case status == http.StatusAccepted:
			return inbox.Snooze(10 * time.Second) // not ready yet: no failure, nothing is charged
		}
		return nil
	}
	//page:end
}

// patient stops trying while the carrier is down, instead of using up retries.
func patient(ask carrier) *inbox.HandlerSpec {
	//page:begin breaker
	return inbox.Func("ship", ship(ask),
		inbox.CircuitBreaker(inbox.Breaker{Failures: 5, OpenFor: 30 * time.Second}))
	//page:end
}

// acceptAgain is for an endpoint or a command of the application.
func acceptAgain(ctx context.Context, ib *inbox.Inbox, rejectedID string) error {
	_, err := ib.AcceptRejected(ctx, rejectedID)
	var still *inbox.StillBadError
	switch {
	case errors.Is(err, inbox.ErrRejectedNotFound):
		return nil // somebody has done it
	case errors.As(err, &still):
		return fmt.Errorf("it is as bad as before, the row stays: %w", err)
	}
	return err
}
