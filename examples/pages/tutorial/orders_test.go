package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
)

func TestOrderReservesItsArticlesOnce(t *testing.T) {
	kit := fxtest.New(t, orders()) // an inbox on a SQLite file, with a clock that only the test moves
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))
	require.NoError(t, kit.DB.Create(&Stock{SKU: "tea", Available: 10}).Error)

	three := fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{SKU: "tea", Quantity: 3})
	kit.Accept(three)
	kit.Process()
	kit.RequireCompleted("o-1", "reserve-stock")

	kit.Accept(three) // a duplicate, as Kafka delivers after a crash
	kit.Process()

	var tea Stock
	require.NoError(t, kit.DB.Take(&tea, "sku = ?", "tea").Error)
	require.Equal(t, 7, tea.Available)
}
