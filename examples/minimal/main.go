// Command minimal is a whole program on an inbox, as small as it gets. It
// takes DATABASE_URL (PostgreSQL) and KAFKA_BROKERS from its environment,
// consumes the topic orders.events and runs until a signal ends it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func main() {
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	//page:begin readme
	fx.New(
		fx.Provide(
			zap.NewProduction, // *zap.Logger; a *slog.Logger does, too
			fx.Annotate(openOrdersDB, fx.ResultTags(`name:"orders"`)), // *gorm.DB
			NewFulfilOrder, // *FulfilOrder: Handle(ctx context.Context, m handler.Message[OrderPlaced]) error
		),
		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) {
				o.Migrate = true
				o.Processor.MaxRetries = 12
			}),
			inbox.Channel("orders.events",
				inbox.Kafka(kafkaconsumer.Config{Brokers: brokers, Topics: []string{"orders.events"}, GroupID: "fulfilment"}),
				inbox.On("order.placed",
					inbox.From[*FulfilOrder]("fulfil-order"), // at least once
					inbox.Tx("reserve-stock", reserveStock),  // exactly once
				),
			),
		),
	).Run()
	//page:end
}

func openOrdersDB(lc fx.Lifecycle) (*gorm.DB, error) {
	db, err := gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")), &gorm.Config{})
	if err != nil {
		return nil, fmt.Errorf("orders database: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("orders database: %w", err)
	}
	lc.Append(fx.StopHook(pool.Close))
	return db, db.AutoMigrate(&Stock{})
}

// OrderPlaced is the payload of "order.placed".
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// FulfilOrder has an order packed, elsewhere: at least once.
type FulfilOrder struct{ packing *log.Logger }

// NewFulfilOrder makes the handler; Fx calls it.
func NewFulfilOrder() *FulfilOrder { return &FulfilOrder{packing: log.New(os.Stdout, "", 0)} }

// Handle runs for each order, again after a failure.
func (h *FulfilOrder) Handle(_ context.Context, m handler.Message[OrderPlaced]) error {
	h.packing.Printf("pack order %s: %d of %s (message %s, attempt %d)", m.Payload.OrderID, m.Payload.Quantity,
		m.Payload.SKU, m.ID, m.Attempt)
	return nil
}

// Stock is how many of an article are left.
type Stock struct {
	SKU       string `gorm:"primaryKey"`
	Available int
}

// reserveStock takes an order's articles from the stock exactly once: in the
// transaction that completes its status.
func reserveStock(_ context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	taken := tx.Model(&Stock{}).Where("sku = ? AND available >= ?", m.Payload.SKU, m.Payload.Quantity).
		Update("available", gorm.Expr("available - ?", m.Payload.Quantity))
	if taken.Error != nil {
		return taken.Error
	}
	if taken.RowsAffected == 0 {
		return fmt.Errorf("not enough of %s for order %s", m.Payload.SKU, m.Payload.OrderID)
	}
	return nil
}
