package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/fx"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Running is the application, with the broker and the customers around it.
type Running struct {
	Site      string // the front page's address
	Customers *Customers
	Mailer    *shipping.Mailer
	Ground    *Ground

	Unread int // announcements that shipping has not read, when it has stopped

	kafka   Kafka
	metrics *Metrics
	app     *fx.App
	ended   <-chan fx.ShutdownSignal
}

// Open starts everything but the customers' orders. Close ends it.
func (g *Ground) Open(ctx context.Context, s Settings) (*Running, error) {
	r := &Running{Ground: g}
	if err := r.open(ctx, s); err != nil {
		return nil, errors.Join(err, r.Close(context.WithoutCancel(ctx)))
	}
	return r, nil
}

func (r *Running) open(ctx context.Context, s Settings) (err error) {
	if r.kafka, err = StartKafka(); err != nil {
		return err
	}
	if r.metrics, err = NewMetrics(); err != nil {
		return err
	}
	if r.Customers, err = NewCustomers(r.kafka.Brokers(), s.Rate); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return err
	}
	r.Site = fmt.Sprintf("http://%s/", listener.Addr())
	r.app = Shop(Config{Orders: r.Ground.Orders.DSN, Shipping: r.Ground.Shipping.DSN, Brokers: r.kafka.Brokers(),
		Listener: listener,
		Accounts: s.Accounts, Metrics: r.metrics, Log: r.Ground.Log}, fx.Populate(&r.Mailer))
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.app.Start(starting); err != nil {
		return errors.Join(err, listener.Close()) // it may not be served yet
	}
	r.ended = r.app.Wait()
	return nil
}

// Order lets customers order until ctx ends, or the application does, which is an
// error.
func (r *Running) Order(ctx context.Context) error {
	err := scratch.Meanwhile(ctx, r.Customers.Order, func(ctx context.Context) error {
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

// Settle waits until nothing is left to do: every record is accepted, every
// status completed or poisoned. It returns how many are which.
func (r *Running) Settle(ctx context.Context) (completed, poisoned int64, err error) {
	err = scratch.Watch(ctx, r.left, func(l left) (bool, error) {
		completed, poisoned = l.Completed, l.Poisoned
		return l.Unread == 0 && l.Waiting == 0 && l.Claimed == 0, nil
	})
	return completed, poisoned, err
}

type left struct {
	Unread int64
	scratch.Tally
}

// left is what there is to do, counted along the way that an order takes: what
// one count sees as done is there for the next.
func (r *Running) left(ctx context.Context) (l left, err error) {
	for _, name := range []string{orders.Name, shipping.Name} {
		l.Unread += r.kafka.Unread(name)
		t, err := scratch.ReadTally(ctx, r.Ground.Place(name).DB)
		if err != nil {
			return l, fmt.Errorf("%s: %w", name, err)
		}
		l.Completed, l.Poisoned, l.Waiting, l.Claimed = l.Completed+t.Completed, l.Poisoned+t.Poisoned, l.Waiting+
			t.Waiting, l.Claimed+t.Claimed
		l.Retrying += t.Retrying
	}
	return l, nil
}

// Read waits until what customers have ordered is accepted, so that there is
// nothing left that only the broker has.
func (r *Running) Read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	unread := func(context.Context) (int64, error) { return r.kafka.Unread(orders.Name), nil }
	if err := scratch.Watch(ctx, unread, func(n int64) (bool, error) { return n == 0, nil }); err != nil {
		return fmt.Errorf("%d records are not accepted: %w", r.kafka.Unread(orders.Name), err)
	}
	return nil
}

// Close stops the application and ends everything.
func (r *Running) Close(ctx context.Context) error {
	var problems []error
	if r.app != nil {
		stopping, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		problems = append(problems, r.app.Stop(stopping))
	}
	if r.Customers != nil {
		r.Customers.Close()
	}
	if r.metrics != nil {
		problems = append(problems, r.metrics.Provider.Shutdown(ctx))
	}
	if r.kafka.Kafka != nil {
		r.Unread = int(r.kafka.Unread(shipping.Name))
		r.kafka.Close()
	}
	return errors.Join(problems...)
}
