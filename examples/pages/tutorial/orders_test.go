package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
)

func TestAnOrderReservesItsArticlesOnce(t *testing.T) {
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

//page:begin retry

func TestAnOrderThatCannotBeServedIsTriedAgain(t *testing.T) {
	kit := fxtest.New(t, orders())
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))
	require.NoError(t, kit.DB.Create(&Stock{SKU: "tea", Available: 10}).Error)

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-2", OrderPlaced{SKU: "tea", Quantity: 12}))
	kit.Process()
	status := kit.RequireFailed("o-2", "reserve-stock")
	require.Equal(t, "fewer than 12 of tea are left", *status.LastError)

	require.NoError(t, kit.DB.Save(&Stock{SKU: "tea", Available: 100}).Error) // a delivery came
	kit.Advance(2 * time.Second)                                              // the first retry is due after one to two seconds
	kit.Process()
	kit.RequireCompleted("o-2", "reserve-stock")
}

//page:end

//page:begin poison

func TestAnOrderThatNeverWorksIsParked(t *testing.T) {
	kit := fxtest.New(t, orders())
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-3", OrderPlaced{SKU: "coffee", Quantity: 1}))
	kit.ProcessAll() // moves the clock from attempt to attempt
	status := kit.RequirePoisoned("o-3", "reserve-stock")
	require.Equal(t, 5, status.ErrorCount)
}

//page:end
