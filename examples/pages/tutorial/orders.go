package main

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// OrderPlaced is the payload of "order.placed".
type OrderPlaced struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// Stock is how many of an article are left.
type Stock struct {
	SKU       string `gorm:"primaryKey"`
	Available int
}

// reserveStock takes an order's articles from the stock.
func reserveStock(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	taken := tx.Model(&Stock{}).
		Where("sku = ? AND available >= ?", m.Payload.SKU, m.Payload.Quantity).
		Update("available", gorm.Expr("available - ?", m.Payload.Quantity))
	if taken.Error != nil {
		return taken.Error
	}
	if taken.RowsAffected == 0 {
		return fmt.Errorf("fewer than %d of %s are left", m.Payload.Quantity, m.Payload.SKU)
	}
	return nil
}

// orders routes messages to handlers.
func orders(from ...inbox.ChannelOption) inbox.Option {
	return inbox.Channel("orders.events", append(from,
		inbox.On("order.placed", inbox.Tx("reserve-stock", reserveStock)),
	)...)
}
