// Package apptests is the code of docs/testing.md: an application, and tests of it.
package apptests

import (
	"context"
	"fmt"
	"os"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// OrderPlaced is a payload.
type OrderPlaced struct {
	Customer string
	Total    int
}

// Bank is what a handler needs.
type Bank interface {
	Charge(ctx context.Context, customer string, total int, idempotencyKey string) error
}

// Charge charges an order's customer.
type Charge struct{ bank Bank }

// NewCharge makes the handler; Fx calls it.
func NewCharge(bank Bank) *Charge { return &Charge{bank} }

// Handle charges one order.
func (c *Charge) Handle(ctx context.Context, m handler.Message[OrderPlaced]) error {
	if err := c.bank.Charge(ctx, m.Payload.Customer, m.Payload.Total, m.ID); err != nil {
		return fmt.Errorf("charge %s: %w", m.Payload.Customer, err)
	}
	return nil
}

// Application is all but the databases and services it is given.
func Application(brokers []string) fx.Option {
	return fx.Options(
		fx.Provide(NewCharge),
		inbox.Module("shop",
			inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inbox.Channel("orders.events",
				inbox.Kafka(kafkaconsumer.Config{Brokers: brokers, Topics: []string{"orders.events"}, GroupID: "shop"}),
				inbox.On("order.placed", inbox.From[*Charge]("charge")),
			),
		),
	)
}

// Production is what main adds.
func Production(bank Bank) fx.Option {
	return fx.Options(
		fx.Supply(fx.Annotate(bank, fx.As(new(Bank)))),
		fx.Provide(zap.NewProduction, fx.Annotate(func() (*gorm.DB, error) {
			return gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")), &gorm.Config{})
		}, fx.ResultTags(`name:"shop"`))),
	)
}
