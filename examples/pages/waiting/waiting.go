// Package waiting is the code of docs/processing.md.
package waiting

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Order is a payload.
type Order struct{ ID string }

type handle = func(ctx context.Context, m handler.Message[Order]) error

func orders(remindCustomer, askForReview handle) inbox.Option {
	//page:begin handler
	return inbox.Channel("orders", inbox.On("order.remind",
		inbox.Func("remind-customer", remindCustomer),
		inbox.Func("ask-for-review", askForReview, handler.NotBefore(func(handler.RawMessage) time.Time {
			return time.Now().AddDate(0, 0, 14)
		}))))
	//page:end
}

//page:begin accept
func remind(ctx context.Context, ib *inbox.Inbox, o Order, at time.Time) error {
	m, err := inbox.JSON("orders", "order.remind", "remind-"+o.ID, o)
	if err != nil {
		return err
	}
	m.NotBefore = at
	_, err = ib.Accept(ctx, m)
	return err
}

//page:end

// byHeader is a field of an inbox's channel.
var byHeader = kafkaconsumer.Config{
	//page:begin header
	Decoder: envelope.DecoderConfig{NotBeforeHeader: "not-before"}, // RFC 3339 or Unix milliseconds
	//page:end
}
