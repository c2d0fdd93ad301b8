package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
)

func TestUnservableOrderIsRetried(t *testing.T) {
	kit := fxtest.New(t, orders())
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))
	require.NoError(t, kit.DB.Create(&Stock{SKU: "tea", Available: 10}).Error)

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-2", OrderPlaced{SKU: "tea", Quantity: 12}))
	kit.Process()
	status := kit.RequireFailed("o-2", "reserve-stock")
	require.Equal(t, "fewer than 12 of tea are left", *status.LastError)

	require.NoError(t, kit.DB.Save(&Stock{SKU: "tea", Available: 100}).Error) // a delivery came
	// the first retry is due after one to two seconds
	kit.Advance(2 * time.Second)
	kit.Process()
	kit.RequireCompleted("o-2", "reserve-stock")
}

func TestOrderThatNeverSucceedsIsPoisoned(t *testing.T) {
	kit := fxtest.New(t, orders())
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-3", OrderPlaced{SKU: "coffee", Quantity: 1}))
	kit.ProcessAll() // moves the clock from attempt to attempt
	status := kit.RequirePoisoned("o-3", "reserve-stock")
	require.Equal(t, 5, status.ErrorCount)
}
