package main

import (
	"context"
	"errors"
	"strings"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// ordersPerKill is how many orders customers place for each kill, and after the last.
const ordersPerKill = 200

// crash runs each context in two processes, kills them while customers order, and judges what is left.
func crash(ctx context.Context, env *demo.Environment, s Settings, r *Running) (*demo.Ledger, error) {
	// Two processes that create the same tables at once would fail.
	if err := errors.Join(r.Orders.DB.WithContext(ctx).AutoMigrate(orders.Tables()...),
		r.Shipping.DB.WithContext(ctx).AutoMigrate(shipping.Tables()...)); err != nil {
		return nil, err
	}
	processes, err := env.Processes([]string{"orders-1", "orders-2", "shipping-1", "shipping-2"}, func(name string) any {
		service := Service{Context: orders.Name, Database: r.Orders.DSN, Brokers: r.broker.Addresses,
			Session: r.broker.Session}
		if strings.HasPrefix(name, shipping.Name) {
			service.Context, service.Database = shipping.Name, r.Shipping.DSN
		}
		return service
	})
	if err != nil {
		return nil, err
	}
	env.Say("%d orders (seed %d) through %s; %s", ordersPerKill*(s.Kills+1), env.Seed, r.broker, env)
	crashes := &demo.Crashes{Env: env, Workers: processes, Kills: s.Kills, Window: r.broker.Session * 3 / 2,
		Read: func(ctx context.Context) (demo.Tally, error) {
			p, err := r.progress(ctx)
			return p.orders.Plus(p.shipping), err
		},
		Done: func(ctx context.Context, _ demo.Tally) (bool, error) {
			p, err := r.progress(ctx)
			return p.done(), err
		}}
	numbers := make([]int, ordersPerKill*(s.Kills+1))
	for i := range numbers {
		numbers[i] = i + 1
	}
	_, runErr := processes.During(ctx, func(ctx context.Context) error {
		return demo.RunCrashes(ctx, crashes, numbers, func(ctx context.Context, numbers []int) error {
			for _, n := range numbers {
				if err := r.Customers.place(ctx, n); err != nil {
					return err
				}
			}
			return nil
		})
	})
	// The result is read even if the run failed: it shows how far things went.
	result, err := r.ReadResult(ctx)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	ledger := Balance(r.Customers.journal, result, true)
	ledger.Figure("kills", crashes.Killed)
	return ledger, runErr
}
