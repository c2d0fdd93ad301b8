package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest"
)

func TestAnOrderThatNeverWorksIsParked(t *testing.T) {
	kit := fxtest.New(t, orders())
	require.NoError(t, kit.DB.AutoMigrate(&Stock{}))

	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-3", OrderPlaced{SKU: "coffee", Quantity: 1}))
	kit.ProcessAll() // moves the clock from attempt to attempt
	status := kit.RequirePoisoned("o-3", "reserve-stock")
	require.Equal(t, 5, status.ErrorCount)
}
