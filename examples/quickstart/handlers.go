package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// The handler keys: stored with every status, so they stay for ever.
const (
	notifyCustomer = "notify-customer"
	bookRevenue    = "book-revenue"
)

// OrderPlaced is the payload of "order.placed".
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	// Trouble says, for the demonstration, which handler fails with this
	// order: on its first attempt ("once") or on every one ("always").
	Trouble map[string]string `json:"trouble,omitempty"`
}

// Trouble kinds.
const (
	once   = "once"
	always = "always"
)

// goesWrong is nil unless the order says that this attempt is to fail.
func goesWrong(m handler.Message[OrderPlaced]) error {
	switch m.Payload.Trouble[m.HandlerKey] {
	case always:
		return errors.New("it always does")
	case once:
		if m.Attempt == 1 {
			return errors.New("it does the first time")
		}
	}
	return nil
}

// NotifyCustomer sends a mail for each order. It is a plain handler: mail is
// out of the database's reach, so it is sent at least once. A service killed
// between sending and the record of it sends again, which is why real ones
// hand the message ID over for the mail server to deduplicate by.
type NotifyCustomer struct{ mail *Mailer }

// NewNotifyCustomer makes the handler; Fx calls it.
func NewNotifyCustomer(mail *Mailer) *NotifyCustomer { return &NotifyCustomer{mail: mail} }

// Handle sends the mail for one order.
func (h *NotifyCustomer) Handle(_ context.Context, m handler.Message[OrderPlaced]) error {
	if err := goesWrong(m); err != nil {
		return fmt.Errorf("mail server refuses %s: %w", m.Payload.Customer, err)
	}
	return h.mail.Send(m.ID)
}

// RevenueEntry is a line of the books: nothing but the inbox keeps an order
// from having two.
type RevenueEntry struct {
	ID       int64  `gorm:"primaryKey"`
	OrderID  string `gorm:"not null"`
	Cents    int64  `gorm:"not null"`
	BookedAt time.Time
}

// BookRevenue is a transactional handler: what it writes through tx is
// committed together with the completion of its status, or not at all.
func BookRevenue(_ context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	entry := RevenueEntry{OrderID: m.Payload.OrderID, Cents: m.Payload.Cents, BookedAt: time.Now().UTC()}
	if err := tx.Create(&entry).Error; err != nil {
		return err
	}
	// After the write, so that a failure has something to take back.
	if err := goesWrong(m); err != nil {
		return fmt.Errorf("books are closed for order %s: %w", m.Payload.OrderID, err)
	}
	return nil
}

// Mailer stands for a mail server: a file with a line for each mail sent,
// appended in one write, so that a kill cannot tear it.
type Mailer struct{ sent *os.File }

// NewMailer opens the file; Fx calls it.
func NewMailer(cfg Config, lc fx.Lifecycle) (*Mailer, error) {
	sent, err := os.OpenFile(cfg.Outgoing, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("outgoing mail: %w", err)
	}
	lc.Append(fx.StopHook(sent.Close))
	return &Mailer{sent: sent}, nil
}

// Send sends the mail about one order.
func (m *Mailer) Send(about string) error {
	if _, err := m.sent.WriteString(about + "\n"); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}
