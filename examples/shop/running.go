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
	"github.com/gorm-inbox/inbox/examples/shop/events"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Demonstrate opens the shop, lets customers order, closes it again, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (ledger *demo.Ledger, err error) {
	defer func() {
		if err != nil && s.Smoke {
			env.Say("FAILED to run: %v", err)
		}
	}()
	r, err := Open(ctx, env, s)
	if err != nil {
		return nil, err
	}
	if s.Kills > 0 {
		return crash(ctx, env, s, r)
	}
	if err := r.Start(ctx, env, s); err != nil {
		return nil, err
	}
	failed := 0
	if s.Smoke {
		failed, err = smoke(ctx, s, r, env.Out)
	} else {
		err = play(ctx, env, s, r)
	}
	lasting := context.WithoutCancel(ctx) // Ctrl-C ends the orders
	if err := errors.Join(err, r.Stop(lasting)); err != nil {
		return nil, err
	}
	result, err := r.ReadResult(lasting)
	if err != nil {
		return nil, err
	}
	ledger = Balance(r.Customers.journal, result, s.Smoke)
	if s.Smoke {
		var problem error
		if !ledger.Balanced() {
			problem = fmt.Errorf("%d problems, the first: %s", len(ledger.Problems), ledger.Problems[0])
		}
		failed += report(env.Out, "the databases hold what customers ordered, once", problem)
	}
	if failed > 0 {
		ledger.Problem("%d checks have failed", failed)
	}
	return ledger, nil
}

// play says where everything is, and lets customers order until ctx ends.
func play(ctx context.Context, env *demo.Environment, s Settings, r *Running) error {
	env.Say("\nthe shop is open: %s\n", r.Site)
	env.Say("  account %-8s  password %s  may see and act", operator, s.Accounts.OperatorPassword)
	env.Say("  account %-8s  password %s  may see\n", viewer, s.Accounts.ViewerPassword)
	env.Say("Ctrl-C ends it")
	if err := r.Order(ctx); err != nil {
		return err
	}
	return r.Drain(context.WithoutCancel(ctx))
}

// Running is the application, with its databases, the broker and the customers.
type Running struct {
	Customers        *Customers
	Orders, Shipping *demo.Database

	// What Start has started.
	Site   string // the front page's address
	Mailer *shipping.Mailer

	broker *demo.Broker
	app    *fx.App
	ended  <-chan fx.ShutdownSignal
}

// Open makes what the application needs, which ends with env, and customers.
func Open(ctx context.Context, env *demo.Environment, s Settings) (r *Running, err error) {
	r = &Running{}
	if r.Orders, err = env.Database(ctx, orders.Name); err != nil {
		return nil, err
	}
	if r.Shipping, err = env.Database(ctx, shipping.Name); err != nil {
		return nil, err
	}
	r.broker, err = env.Broker(ctx, "", map[string]string{orders.PlacedTopic: orders.Name,
		shipping.ConfirmedTopic: shipping.Name})
	if err != nil {
		return nil, err
	}
	publisher, err := events.NewPublisher(r.broker.Addresses...)
	if err != nil {
		return nil, err
	}
	env.Cleanup(func(context.Context, bool) error {
		publisher.Close()
		return nil
	})
	r.Customers = &Customers{publisher: publisher, rate: s.Rate}
	return r, nil
}

// Start starts the application in this process. Stop stops it.
func (r *Running) Start(ctx context.Context, env *demo.Environment, s Settings) error {
	logFile, err := os.Create(env.File("shop.log"))
	if err != nil {
		return err
	}
	env.Cleanup(func(context.Context, bool) error { return logFile.Close() })
	env.Say("data: %s\nlog: %s", env, logFile.Name())
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), logFile, zap.InfoLevel))
	metrics, err := NewMetrics()
	if err != nil {
		return err
	}
	env.Cleanup(func(ctx context.Context, _ bool) error { return metrics.Provider.Shutdown(ctx) })
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return err
	}
	r.Site = fmt.Sprintf("http://%s/", listener.Addr())
	r.app = Shop(Config{Orders: r.Orders.DSN, Shipping: r.Shipping.DSN, Brokers: r.broker.Addresses, Listener: listener,
		Accounts: s.Accounts, Metrics: metrics, Log: log}, fx.Populate(&r.Mailer))
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.app.Start(starting); err != nil {
		return errors.Join(err, listener.Close()) // it may not be served yet
	}
	r.ended = r.app.Wait()
	return nil
}

// Order lets customers order until ctx ends, or the application does, which is an error.
func (r *Running) Order(ctx context.Context) error {
	return demo.Concurrently(ctx, r.Customers.Order, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case signal := <-r.ended:
			if signal.ExitCode != 0 { // it is 0 after Ctrl-C, which ends ctx, too
				return fmt.Errorf("the application has ended by itself (exit code %d), see the log", signal.ExitCode)
			}
		}
		return nil
	})
}

// Settle waits until nothing is left to do: every record is accepted, every status completed or poisoned.
// It returns how many are which. What one count sees as done is there for the next, since they are read along the
// way that an order takes.
func (r *Running) Settle(ctx context.Context) (completed, poisoned int64, err error) {
	err = demo.Watch(ctx, r.progress, func(p progress) (bool, error) {
		completed, poisoned = p.orders.Completed+p.shipping.Completed, p.orders.Poisoned+p.shipping.Poisoned
		return p.done(), nil
	})
	return completed, poisoned, err
}

// progress is what one count saw.
type progress struct {
	ordered, confirmed int64 // that are unread
	orders, shipping   demo.Tally
}

func (p progress) done() bool {
	return p.ordered+p.confirmed+p.orders.Waiting+p.orders.Claimed+p.shipping.Waiting+p.shipping.Claimed == 0
}

func (r *Running) progress(ctx context.Context) (p progress, err error) {
	if p.ordered, err = r.broker.Unread(ctx, orders.PlacedTopic); err != nil {
		return p, err
	}
	if p.orders, err = demo.ReadTally(ctx, r.Orders.DB); err != nil {
		return p, err
	}
	if p.confirmed, err = r.broker.Unread(ctx, shipping.ConfirmedTopic); err != nil {
		return p, err
	}
	p.shipping, err = demo.ReadTally(ctx, r.Shipping.DB)
	return p, err
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
