package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/handler"
)

// Handler keys are stored with every status, so they must never change.
const (
	notifyCustomer = "notify-customer"
	bookRevenue    = "book-revenue"
)

// OrderPlaced is the payload of "order.placed".
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	// Faults says, for the demonstration, which handler fails with this order: on its first attempt
	// ("once") or on every one ("always").
	Faults map[string]string `json:"faults,omitempty"`
}

// Faults.
const (
	once   = "once"
	always = "always"
)

// fault returns an error if the order says that this attempt is to fail.
func fault(m handler.Message[OrderPlaced]) error {
	switch m.Payload.Faults[m.HandlerKey] {
	case always:
		return errors.New("every attempt is to fail")
	case once:
		if m.Attempt == 1 {
			return errors.New("the first attempt is to fail")
		}
	}
	return nil
}

// NotifyCustomer sends a mail for each order. It is a plain handler: mail is outside the database, so it
// is sent at least once. A service that is killed between sending a mail and recording it sends it again.
// Real ones give the message ID to the mail server to deduplicate by.
type NotifyCustomer struct{ mail *Mailer }

// NewNotifyCustomer makes the handler; Fx calls it.
func NewNotifyCustomer(mail *Mailer) *NotifyCustomer { return &NotifyCustomer{mail: mail} }

// Handle sends the mail for one order.
func (h *NotifyCustomer) Handle(_ context.Context, m handler.Message[OrderPlaced]) error {
	if err := fault(m); err != nil {
		return fmt.Errorf("mail server refuses %s: %w", m.Payload.Customer, err)
	}
	return h.mail.Send(m.ID)
}

// RevenueEntry records what an order brought. Only the inbox prevents a second one for the same order.
type RevenueEntry struct {
	ID       int64  `gorm:"primaryKey"`
	OrderID  string `gorm:"not null"`
	Cents    int64  `gorm:"not null"`
	BookedAt time.Time
}

// BookRevenue is a transactional handler: what it writes through tx is committed together with the
// completion of its status, or not at all.
func BookRevenue(_ context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	entry := RevenueEntry{OrderID: m.Payload.OrderID, Cents: m.Payload.Cents, BookedAt: time.Now().UTC()}
	if err := tx.Create(&entry).Error; err != nil {
		return err
	}
	// Fail after the write, so that there is something to roll back.
	if err := fault(m); err != nil {
		return fmt.Errorf("cannot book order %s: %w", m.Payload.OrderID, err)
	}
	return nil
}

// Mailer stands for a mail server: a file with a line for each mail.
type Mailer struct{ sent io.Writer }

// NewMailer opens the file; Fx calls it. The end of the process closes it.
func NewMailer(cfg Config) (*Mailer, error) {
	sent, err := demo.OpenLines(cfg.Outgoing)
	return &Mailer{sent}, err
}

// Send sends the mail about one order.
func (m *Mailer) Send(about string) error {
	if _, err := fmt.Fprintln(m.sent, about); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}
