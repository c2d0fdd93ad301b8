package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/events"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// One in so many orders is of a customer whose mail server is broken, is placed
// twice, is followed by a garbled record.
const (
	oneUnreachableIn = 6
	onePlacedTwiceIn = 7
	oneGarbledIn     = 20
)

// customerCount is how many customers there are: few, so that each has orders that must stay in order.
const customerCount = 12

// Journal is what the broker has acknowledged: the application is judged by it.
type Journal struct {
	Orders         []orders.Order
	Twice, Garbled int
}

// Customers place orders. They have nothing from the application but its topic, and one user at a time.
type Customers struct {
	publisher *events.Publisher
	rate      int // per second
	journal   Journal
}

// Order places orders until ctx ends, which is no error.
func (c *Customers) Order(ctx context.Context) error {
	// What was begun is finished, so that the journal has all that is written.
	lasting := context.WithoutCancel(ctx)
	for n := len(c.journal.Orders) + 1; ; n++ {
		if err := c.place(lasting, n); err != nil {
			return fmt.Errorf("place an order: %w", err)
		}
		if demo.Pause(ctx, time.Second/time.Duration(c.rate)) != nil {
			return nil
		}
	}
}

// place places the nth order, with what goes wrong.
func (c *Customers) place(ctx context.Context, n int) error {
	order := makeOrder(n)
	if err := c.send(ctx, order.ID, order); err != nil {
		return err
	}
	c.journal.Orders = append(c.journal.Orders, order)
	if n%onePlacedTwiceIn == 0 { // as when the answer did not come
		if err := c.send(ctx, order.ID, order); err != nil {
			return err
		}
		c.journal.Twice++
	}
	if n%oneGarbledIn == 2 {
		if err := c.send(ctx, "", order); err != nil { // without an ID
			return err
		}
		c.journal.Garbled++
	}
	return nil
}

func makeOrder(n int) orders.Order {
	articles := []string{"tea", "a kettle", "biscuits"}
	domain := "example.com"
	if n%oneUnreachableIn == 1 {
		domain = shipping.BrokenDomain
	}
	return orders.Order{ID: fmt.Sprintf("order-%06d", n), Customer: fmt.Sprintf("customer-%d@%s", n%customerCount, domain),
		Article: articles[n%len(articles)], Quantity: 1 + n%4, Cents: int64(250 + n*37%9_000)}
}

func (c *Customers) send(ctx context.Context, id string, order orders.Order) error {
	return c.publisher.Publish(ctx, orders.PlacedTopic,
		events.Event{ID: id, Type: orders.Placed, Source: "/shop/customers", Key: order.Customer, Data: order})
}
