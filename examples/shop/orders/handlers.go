package orders

import (
	"context"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"

	"github.com/gorm-inbox/inbox/examples/shop/events"
)

// Order is the payload of Placed and of Confirmed.
type Order struct {
	ID       string `json:"order_id"`
	Customer string `json:"customer"` // a mail address
	Article  string `json:"article"`
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
}

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

// Till takes payments. It accepts into the inbox that runs it, and gets it as a function: the inbox is built of its
// handlers.
type Till struct{ inbox func() *inbox.Inbox }

// NewTill makes the handler; Fx calls it.
func NewTill(ib func() *inbox.Inbox) *Till { return &Till{ib} }

// Handle writes the payment and hands the confirmation over, both in the one
// transaction that completes its status: an order is paid and will be announced,
// or neither. Nothing is sent to Kafka from in here, where a rollback could not
// take it back: Announcer does that, with retries of its own.
//
// What is accepted here runs after that transaction's commit.
func (t *Till) Handle(ctx context.Context, tx *gorm.DB, m handler.Message[Order]) error {
	if err := tx.Create(&Payment{OrderID: m.Payload.ID, Cents: m.Payload.Cents}).Error; err != nil {
		return err
	}
	news, err := json.Marshal(m.Payload)
	if err != nil {
		return fmt.Errorf("encode order %s: %w", m.Payload.ID, err)
	}
	_, err = t.inbox().AcceptTx(ctx, tx, handler.RawMessage{Channel: Outgoing, Type: Confirmed,
		ID: ConfirmationOf(m.Payload.ID), Source: "/shop/orders",
		ContentType: "application/json", Content: news})
	return err
}

// ConfirmationOf is the ID of the message that an order is confirmed by, the same
// however often it is made.
func ConfirmationOf(orderID string) string { return orderID + "/confirmed" }

// Announcer produces what Till has handed over: at least once. Killed
// between the broker's acknowledgement and the record of it, it produces again,
// with the same ID, which consumers with an inbox know.
type Announcer struct{ publisher *events.Publisher }

// NewAnnouncer makes the handler; Fx calls it.
func NewAnnouncer(publisher *events.Publisher) *Announcer { return &Announcer{publisher} }

// Handle produces one confirmation.
func (a *Announcer) Handle(ctx context.Context, m handler.Message[Order]) error {
	return a.publisher.Publish(ctx, ConfirmedTopic,
		events.Event{ID: m.ID, Type: m.Type, Source: m.Source, Key: m.Payload.ID, Data: m.Payload})
}
