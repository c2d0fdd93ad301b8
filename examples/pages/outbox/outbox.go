// Package outbox is the code of docs/outbox.md.
package outbox

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/outgoing"
)

// OrderPaid comes, OrderConfirmed leaves.
type (
	OrderPaid      struct{ OrderID string }
	OrderConfirmed struct{ OrderID string }
)

// Key is the key of the order.
func (o OrderConfirmed) Key() string { return o.OrderID }

// Confirmation is a row of the application.
type Confirmation struct {
	OrderID string `gorm:"primaryKey"`
}

func toKafka(brokers []string) inbox.Option {
	return options(
		//page:begin declare
		inbox.Outgoing("order-events",
			inbox.ToKafka(kafkapublisher.Config{Brokers: brokers, Topic: "orders.confirmed", Source: "/shop"}),
			inbox.Publishes("order.confirmed", OrderConfirmed.Key),
		),
		//page:end
	)
}

func options(o inbox.Option) inbox.Option { return o }

// Confirm is a handler that publishes.
type Confirm struct{ inbox func() *inbox.Inbox }

// Handle confirms an order.
//
//page:begin publish
func (c *Confirm) Handle(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPaid]) error {
	if err := tx.Create(&Confirmation{OrderID: m.Payload.OrderID}).Error; err != nil {
		return err
	}
	_, err := c.inbox().PublishTx(ctx, tx, OrderConfirmed{OrderID: m.Payload.OrderID})
	return err
}

//page:end

func toFunction(send func(ctx context.Context, m outgoing.Message) error) inbox.Option {
	return inbox.Outgoing("order-events",
		//page:begin to
		inbox.To(outgoing.Each(send)), // func(ctx context.Context, m outgoing.Message) error
		//page:end
		inbox.Publishes("order.confirmed", OrderConfirmed.Key),
	)
}
