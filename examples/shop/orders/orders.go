// Package orders is the context that takes orders: it reserves what was ordered,
// takes the payment, and tells others of orders that are confirmed.
package orders

import (
	"time"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/kafkapublisher"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Name is that of the context, its database and its inbox.
const Name = "orders"

// Its topics: it consumes the first and produces the second.
const (
	PlacedTopic    = "orders.placed"
	ConfirmedTopic = "orders.confirmed"
)

// The types of its messages.
const (
	Placed    = "order.placed"
	Confirmed = "order.confirmed"
)

// Outgoing is the channel of what TakePayment publishes.
const Outgoing = "orders.outgoing"

// The handler keys: stored with every status, so they must never change.
const (
	ReserveStock = "orders.reserve-stock"
	TakePayment  = "orders.take-payment"
	Announce     = "publish:" + Outgoing // the inbox's own
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

		inbox.Channel(PlacedTopic,
			inbox.Kafka(kafkaconsumer.Config{Brokers: cfg.Brokers, Topics: []string{PlacedTopic}, GroupID: Name,
				SessionTimeout: cfg.Session, HeartbeatInterval: cfg.Session / 6}),
			inbox.On(Placed,
				inbox.Tx(ReserveStock, reserveStock), // exactly once
				// exactly once, with what it publishes, and a customer's in order
				inbox.FromTx[*Till](TakePayment, handler.Ordered())),
		),
		inbox.Outgoing(Outgoing,
			inbox.ToKafka(kafkapublisher.Config{Brokers: cfg.Brokers, Topic: ConfirmedTopic, Source: "/shop/orders"}),
			inbox.Publishes(Confirmed, Order.key), // at least once, and a customer's in order
		),
	}
	return fx.Options(
		fx.Provide(fx.Annotate(cfg.open, fx.ResultTags(`name:"orders"`)),
			fx.Annotate(NewTill, fx.ParamTags(`name:"orders"`))),
		inbox.Module(Name, append(declared, more...)...),
	)
}

// open opens the database, with the context's own tables.
func (cfg Config) open(lc fx.Lifecycle) (*gorm.DB, error) {
	return demo.OpenIn(lc, cfg.Database, Tables()...)
}

// Tables are the context's own.
func Tables() []any { return []any{&Reservation{}, &Payment{}} }
