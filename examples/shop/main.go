// Command shop is everything at once, to be played with: two bounded contexts, each with its own database
// and its own inbox, in one Fx application, and what operators see of them.
//
//	go run -C examples ./shop
//
// needs nothing but Go. Customers place orders on the topic orders.placed of an in-process Kafka, a few per
// second, some of them twice, some of them garbled. Orders (package orders) reserves and takes the payment,
// and announces on orders.confirmed; shipping (package shipping) makes a parcel and notifies the customer.
// It prints the address of its front page, and two accounts:
//
//	/                  the front page
//	/orders/inbox/     the dashboard of orders
//	/shipping/inbox/   the dashboard of shipping
//	/metrics           for Prometheus
//	/orders/live       and /orders/ready, /shipping/live, /shipping/ready: for probes
//
// To play with it:
//
//   - The mail server of pigeon.example is broken: see Failures in shipping's dashboard. Messages to its
//     customers are retried, and poisoned after three attempts. Fix it on the front page, then retry them
//     in the dashboard, all at once.
//   - Pause orders.take-payment under Handlers, watch the backlog grow, resume.
//   - Rejected in orders' dashboard has the garbled records.
//   - Sign in as viewer and see what is not offered.
//   - Audit has all that you did.
//
// Ctrl-C ends it, and prints what the databases hold: what was lost, doubled, poisoned and completed. The
// part to copy is in this file (Shop), orders/orders.go, shipping/shipping.go and web.go.
//
// With -smoke it uses the shop like an operator, prints a line for each thing it has checked, and ends. The
// exit status is 0 only if all of them are ok.
//
// With -crash N each context runs in two processes of its own, without pages. N times one of the four is killed
// by SIGKILL while customers order. When nothing is left to do the four are stopped, and the databases are judged:
// lost, doubled and out_of_order (of a customer's orders) must be 0.
//
// -h lists the flags.
package main

import (
	"context"
	"net"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Config is what the application needs.
type Config struct {
	Orders, Shipping string // DSNs
	Brokers          []string
	Listener         net.Listener // what the web server serves, and closes
	Accounts         Accounts
	Metrics          *Metrics
	Log              *zap.Logger
}

// Shop is the application; more is what tests and demonstrations want of it.
func Shop(cfg Config, more ...fx.Option) *fx.App {
	common := inboxOptions(cfg.Metrics.Provider)
	return fx.New(
		fx.Supply(cfg, cfg.Log),
		fx.NopLogger, // Start returns what goes wrong

		orders.Module(orders.Config{Database: cfg.Orders, Brokers: cfg.Brokers}, common...),
		shipping.Module(shipping.Config{Database: cfg.Shipping, Brokers: cfg.Brokers}, common...),

		fx.Invoke(serveWeb), // dashboards, metrics, probes
		fx.Options(more...),
	)
}

// Service is one context of the shop in a process of its own.
type Service struct {
	Context  string // orders.Name or shipping.Name
	Database string // its DSN
	Brokers  []string
	Session  time.Duration
}

// runService runs it until ctx ends. What a killed process held is free again within seconds.
func runService(ctx context.Context, s Service) error {
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	options := append(inboxOptions(nil), inbox.Configure(func(o *inbox.Options) {
		o.Processor.HeartbeatInterval = 500 * time.Millisecond
		o.Processor.SweepInterval = 500 * time.Millisecond
		o.Processor.WorkerTimeout = 2 * time.Second
		o.Processor.MaxAbandoned = 2 * demo.MaxKills
	}))
	module := orders.Module(orders.Config{Database: s.Database, Brokers: s.Brokers, Session: s.Session}, options...)
	if s.Context == shipping.Name {
		module = shipping.Module(shipping.Config{Database: s.Database, Brokers: s.Brokers, Session: s.Session}, options...)
	}
	return demo.Run(ctx, fx.New(fx.Supply(log), fx.NopLogger, module))
}

// inboxOptions are those of both inboxes. Only their timing differs from production: retries and pauses take
// seconds, not minutes.
func inboxOptions(meters metric.MeterProvider) []inbox.Option {
	return []inbox.Option{
		inbox.Configure(func(o *inbox.Options) {
			o.MeterProvider = meters // or set OpenTelemetry's global one
			o.Processor.MaxRetries = 3
			o.Processor.MaxRetryDelay = time.Second
			o.Processor.PollingInterval = 500 * time.Millisecond // what orders.take-payment hands over is found by polling
			o.Processor.HeartbeatInterval = time.Second          // a pause takes effect within
			o.SampleInterval = time.Second                       // of gauges and health
		}),
	}
}

func main() {
	if !demo.IsWorker() {
		command.Main()
	}
	demo.Work(runService)
}

var command = demo.Command[Settings]{Name: "shop", Seeded: true, Flags: declare, Check: check, Demonstrate: Demonstrate}
