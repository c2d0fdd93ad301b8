package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Running is the application, with its databases, the broker and the customers.
type Running struct {
	Site             string // the front page's address
	Customers        *Customers
	Mailer           *shipping.Mailer
	Orders, Shipping *demo.Database

	broker *demo.Broker
	app    *fx.App
	ended  <-chan fx.ShutdownSignal
}

// Open starts everything but the customers' orders. Stop stops the application; the rest ends with env.
func Open(ctx context.Context, env *demo.Environment, s Settings) (r *Running, err error) {
	r = &Running{}
	if r.Orders, err = env.Database(ctx, orders.Name); err != nil {
		return nil, err
	}
	if r.Shipping, err = env.Database(ctx, shipping.Name); err != nil {
		return nil, err
	}
	logFile, err := os.Create(env.File("shop.log"))
	if err != nil {
		return nil, err
	}
	env.Cleanup(func(context.Context, bool) error { return logFile.Close() })
	env.Screen.Say("data: %s\nlog: %s", env, logFile.Name())
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), logFile, zap.InfoLevel))
	r.broker, err = env.Broker(ctx, "", map[string]string{orders.PlacedTopic: orders.Name,
		shipping.ConfirmedTopic: shipping.Name})
	if err != nil {
		return nil, err
	}
	metrics, err := NewMetrics()
	if err != nil {
		return nil, err
	}
	env.Cleanup(func(ctx context.Context, _ bool) error { return metrics.Provider.Shutdown(ctx) })
	if r.Customers, err = NewCustomers(r.broker.Addresses, s.Rate); err != nil {
		return nil, err
	}
	env.Cleanup(func(context.Context, bool) error {
		r.Customers.Close()
		return nil
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	r.Site = fmt.Sprintf("http://%s/", listener.Addr())
	r.app = Shop(Config{Orders: r.Orders.DSN, Shipping: r.Shipping.DSN, Brokers: r.broker.Addresses, Listener: listener,
		Accounts: s.Accounts, Metrics: metrics, Log: log}, fx.Populate(&r.Mailer))
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.app.Start(starting); err != nil {
		return nil, errors.Join(err, listener.Close()) // it may not be served yet
	}
	r.ended = r.app.Wait()
	return r, nil
}

// Order lets customers order until ctx ends, or the application does, which is an error.
func (r *Running) Order(ctx context.Context) error {
	err := demo.Concurrently(ctx, r.Customers.Order, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case signal := <-r.ended:
			if signal.ExitCode == 0 { // of Ctrl-C, which ends ctx, too
				return nil
			}
			return fmt.Errorf("the application has ended by itself (exit code %d), see the log", signal.ExitCode)
		}
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// progress is what there is to do, and what is done.
type progress struct {
	unread           int64
	orders, shipping demo.Tally
}

// progress is read along the way that an order takes: what one count sees as done is there for the next.
func (r *Running) progress(ctx context.Context) (p progress, err error) {
	ordered, err := r.broker.Unread(ctx, orders.PlacedTopic)
	if err != nil {
		return p, err
	}
	if p.orders, err = demo.ReadTally(ctx, r.Orders.DB); err != nil {
		return p, err
	}
	confirmed, err := r.broker.Unread(ctx, shipping.ConfirmedTopic)
	if err != nil {
		return p, err
	}
	p.unread = ordered + confirmed
	p.shipping, err = demo.ReadTally(ctx, r.Shipping.DB)
	return p, err
}

// Settle waits until nothing is left to do: every record is accepted, every status completed or poisoned.
// It returns how many are which.
func (r *Running) Settle(ctx context.Context) (completed, poisoned int64, err error) {
	err = demo.Watch(ctx, r.progress, func(p progress) (bool, error) {
		completed, poisoned = p.orders.Completed+p.shipping.Completed, p.orders.Poisoned+p.shipping.Poisoned
		return p.unread+p.orders.Waiting+p.orders.Claimed+p.shipping.Waiting+p.shipping.Claimed == 0, nil
	})
	return completed, poisoned, err
}

// Drain waits until what customers have ordered is accepted, so that nothing is left that only the broker has.
func (r *Running) Drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	unread := func(ctx context.Context) (int64, error) { return r.broker.Unread(ctx, orders.PlacedTopic) }
	if err := demo.Watch(ctx, unread, func(n int64) (bool, error) { return n == 0, nil }); err != nil {
		return fmt.Errorf("not all orders are accepted: %w", err)
	}
	return nil
}

// Stop stops the application.
func (r *Running) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return r.app.Stop(ctx)
}
