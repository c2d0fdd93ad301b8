package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
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

// Journal is what the broker has acknowledged: the application is judged by it.
type Journal struct {
	Orders         []orders.Order
	Twice, Garbled int
}

// Customers place orders. They have nothing from the application but its topic.
type Customers struct {
	publisher *events.Publisher
	rate      int // per second

	mu      sync.Mutex
	journal Journal
}

// NewCustomers makes customers that do nothing yet. Close them.
func NewCustomers(brokers []string, rate int) (*Customers, error) {
	publisher, err := events.NewPublisher(brokers...)
	if err != nil {
		return nil, err
	}
	return &Customers{publisher: publisher, rate: rate}, nil
}

// Order places orders until ctx ends, which is no error.
func (c *Customers) Order(ctx context.Context) error {
	// What was begun is finished, so that the journal has all that is written.
	lasting := context.WithoutCancel(ctx)
	for n := len(c.Journal().Orders) + 1; ; n++ {
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
	c.note(func(j *Journal) { j.Orders = append(j.Orders, order) })
	if n%onePlacedTwiceIn == 0 { // as when the answer did not come
		if err := c.send(ctx, order.ID, order); err != nil {
			return err
		}
		c.note(func(j *Journal) { j.Twice++ })
	}
	if n%oneGarbledIn == 2 {
		if err := c.send(ctx, "", order); err != nil { // without an ID
			return err
		}
		c.note(func(j *Journal) { j.Garbled++ })
	}
	return nil
}

func makeOrder(n int) orders.Order {
	articles := []string{"tea", "a kettle", "biscuits"}
	domain := "example.com"
	if n%oneUnreachableIn == 1 {
		domain = shipping.BrokenDomain
	}
	return orders.Order{ID: fmt.Sprintf("order-%06d", n), Customer: fmt.Sprintf("customer-%d@%s", n%97, domain),
		Article: articles[n%len(articles)], Quantity: 1 + n%4, Cents: int64(250 + n*37%9_000)}
}

func (c *Customers) send(ctx context.Context, id string, order orders.Order) error {
	return c.publisher.Publish(ctx, orders.PlacedTopic,
		events.Event{ID: id, Type: orders.Placed, Source: "/shop/customers", Key: order.Customer, Data: order})
}

func (c *Customers) note(change func(*Journal)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.journal)
}

// Journal is what has been written so far.
func (c *Customers) Journal() Journal {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.journal
	j.Orders = slices.Clone(j.Orders)
	return j
}

// Close closes the connection.
func (c *Customers) Close() { c.publisher.Close() }
