// Package renaming is the code of docs/handlers.md.
package renaming

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
)

// OrderPlaced is a payload.
type OrderPlaced struct{ OrderID string }

// fulfil is the handler of all programs below.
type fulfil func(ctx context.Context, m handler.Message[OrderPlaced]) error

// before is what runs until the rename.
func before(fulfilOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		inbox.Func("order-handler", fulfilOrder)))
}

// added has one more handler.
func added(fulfilOrder, billOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		inbox.Func("order-handler", fulfilOrder), inbox.Func("bill-order", billOrder)))
}

// backfill gives the handler what was accepted without it.
func backfill(ctx context.Context, o *ops.Ops, deployBegan time.Time) (ops.BulkResult, error) {
	//page:begin backfill
	return o.Backfill(ctx, "ada@example.org", "bill-order", deployBegan, time.Time{}, ops.Bulk{})
	//page:end
}

// after is the rename.
func after(fulfilOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		//page:begin after
		inbox.Func("fulfil-order", fulfilOrder, handler.LegacyKeys("order-handler")),
		//page:end
	))
}

// twice is a second rename.
func twice(fulfilOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		//page:begin twice
		inbox.Func("ship-order", fulfilOrder, handler.LegacyKeys("fulfil-order", "order-handler")),
		//page:end
	))
}

// prepared knows the new key already, under the old name.
func prepared(fulfilOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		//page:begin prepared
		inbox.Func("order-handler", fulfilOrder, handler.LegacyKeys("fulfil-order")),
		//page:end
	))
}

// forgotten has dropped the old key.
func forgotten(fulfilOrder fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed", inbox.Func("fulfil-order", fulfilOrder)))
}

// limited calls a partner no faster than the contract with it allows.
func limited(callPartner fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		//page:begin limited
		inbox.Func("call-partner", callPartner, handler.FleetConcurrency(4), handler.Rate(5, 4)),
		//page:end
	))
}

// fair gives each source of messages a rate of its own.
func fair(callPartner fulfil) inbox.Option {
	return inbox.Channel("orders.events", inbox.On("order.placed",
		//page:begin tenants
		inbox.Func("call-partner", callPartner, handler.RateBy(5, 4, func(m handler.RawMessage) string {
			return m.Source
		})),
		//page:end
	))
}

// renamed has given the channel another name.
func renamed(fulfilOrder fulfil) inbox.Option {
	//page:begin channel
	return inbox.Channel("orders.placed", inbox.IDNamespace("orders.events"), inbox.On("order.placed",
		inbox.Func("fulfil-order", fulfilOrder)))
	//page:end
}
