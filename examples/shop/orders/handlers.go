package orders

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// Order is the payload of Placed and of Confirmed.
type Order struct {
	ID       string `json:"order_id"`
	Customer string `json:"customer"` // a mail address
	Article  string `json:"article"`
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
}

// key is the ordering key: a customer's orders are confirmed in the order in which they were placed.
func (o Order) key() string { return o.Customer }

// Reservation and Payment are the context's own tables. Nothing but the inbox
// keeps an order from having two of each.
type (
	Reservation struct {
		Number   int64  `gorm:"primaryKey"`
		OrderID  string `gorm:"not null"`
		Article  string `gorm:"not null"`
		Quantity int    `gorm:"not null"`
	}
	Payment struct {
		Number  int64  `gorm:"primaryKey"`
		OrderID string `gorm:"not null"`
		Cents   int64  `gorm:"not null"`
	}
)

// reserveStock is a transactional handler: what it writes through tx is
// committed together with the completion of its status, or not at all.
func reserveStock(_ context.Context, tx *gorm.DB, m handler.Message[Order]) error {
	o := m.Payload
	return tx.Create(&Reservation{OrderID: o.ID, Article: o.Article, Quantity: o.Quantity}).Error
}

// Till takes payments. It publishes by the inbox that runs it, and gets it as a function: the inbox is built of its
// handlers.
type Till struct{ inbox func() *inbox.Inbox }

// NewTill makes the handler; Fx calls it.
func NewTill(ib func() *inbox.Inbox) *Till { return &Till{ib} }

// Handle writes the payment and publishes the confirmation, both in the one
// transaction that completes its status: an order is paid and will be announced,
// or neither. The inbox sends it to Kafka after the commit, with retries of its own.
func (t *Till) Handle(ctx context.Context, tx *gorm.DB, m handler.Message[Order]) error {
	if err := tx.Create(&Payment{OrderID: m.Payload.ID, Cents: m.Payload.Cents}).Error; err != nil {
		return err
	}
	_, err := t.inbox().PublishTx(ctx, tx, inbox.Event{Payload: m.Payload, ID: ConfirmationOf(m.Payload.ID)})
	return err
}

// ConfirmationOf is the ID of the message that an order is confirmed by, the same
// however often it is made.
func ConfirmationOf(orderID string) string { return orderID + "/confirmed" }
