// Package shipping is the context that sends confirmed orders to their customers
// and tells them so.
package shipping

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Name is that of the context, its database and its inbox.
const Name = "shipping"

// ConfirmedTopic is the topic that it consumes.
const ConfirmedTopic = "orders.confirmed"

// The handler keys: stored with every status, so they must never change.
const (
	CreateParcel   = "shipping.create-parcel"
	NotifyCustomer = "shipping.notify-customer"
)

// Config is what the context needs.
type Config struct {
	Database string // a DSN
	Brokers  []string
	Session  time.Duration // of its consumer group; 0 is the default
}

// Module is the context: its database, its inbox, its handlers. More options of
// the inbox are the application's.
func Module(cfg Config, more ...inbox.Option) fx.Option {
	declared := []inbox.Option{
		inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),

		inbox.Channel(ConfirmedTopic,
			inbox.Kafka(kafkaconsumer.Config{Brokers: cfg.Brokers, Topics: []string{ConfirmedTopic}, GroupID: Name,
				SessionTimeout: cfg.Session, HeartbeatInterval: cfg.Session / 6}),
			inbox.On("order.confirmed",
				inbox.Tx(CreateParcel, createParcel, handler.Ordered()), // exactly once, and a customer's in order
				inbox.From[*CustomerNotice](NotifyCustomer)),            // at least once
		),
	}
	return fx.Options(
		fx.Provide(fx.Annotate(cfg.open, fx.ResultTags(`name:"shipping"`)), NewMailer, NewCustomerNotice),
		inbox.Module(Name, append(declared, more...)...),
	)
}

// open opens the database, with the context's own tables.
func (cfg Config) open(lc fx.Lifecycle) (*gorm.DB, error) {
	return demo.OpenIn(lc, cfg.Database, Tables()...)
}

// Tables are the context's own.
func Tables() []any { return []any{&Parcel{}} }

// Order is what shipping reads of a confirmed order.
type Order struct {
	ID       string `json:"order_id"`
	Customer string `json:"customer"` // a mail address
	Article  string `json:"article"`
	Quantity int    `json:"quantity"`
}

// Parcel is the context's own table. Nothing but the inbox keeps an order from
// having two.
type Parcel struct {
	Number  int64  `gorm:"primaryKey"`
	OrderID string `gorm:"not null"`
	Content string `gorm:"not null"`
}

// createParcel is a transactional handler: what it writes through tx is committed
// together with the completion of its status, or not at all.
func createParcel(ctx context.Context, tx *gorm.DB, m handler.Message[Order]) error {
	o := m.Payload
	return gorm.G[Parcel](tx).Create(ctx, &Parcel{OrderID: o.ID, Content: fmt.Sprintf("%d × %s", o.Quantity, o.Article)})
}

// CustomerNotice tells customers by mail that their parcel is on its way: a plain
// handler, whose effect is out of the database's reach and happens at least once.
type CustomerNotice struct{ mailer *Mailer }

// NewCustomerNotice makes the handler; Fx calls it.
func NewCustomerNotice(mailer *Mailer) *CustomerNotice { return &CustomerNotice{mailer} }

// Handle sends one mail. Real mail servers are given the message ID, to know a
// mail by that comes again.
func (n *CustomerNotice) Handle(_ context.Context, m handler.Message[Order]) error {
	return n.mailer.Send(m.Payload.Customer)
}
