package main

import (
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Config is what the service gets at its start.
type Config struct {
	Database string // a DSN, see demo.Open
	Brokers  []string
	Topic    string
	Group    string
	Outgoing string // the file that stands for the mail server
	Session  time.Duration
}

// Service is the application: a database, what its handlers need, and an inbox. Only its timing differs
// from production: retries and the recovery of a killed worker's claims and of its lock take seconds,
// not minutes.
func Service(cfg Config) *fx.App {
	return fx.New(
		fx.Supply(cfg),
		fx.Provide(
			zap.NewProduction,
			fx.Annotate(OpenDatabase, fx.ResultTags(`name:"orders"`)), // *gorm.DB
			NewMailer,
			NewNotifyCustomer,
		),
		fx.NopLogger, // Start returns what goes wrong

		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) {
				o.Migrate = true
				o.Processor.MaxRetries = 3
				o.Processor.MaxRetryDelay = time.Second
				o.Processor.HeartbeatInterval = 500 * time.Millisecond
				o.Processor.SweepInterval = 500 * time.Millisecond
				o.Processor.WorkerTimeout = 2 * time.Second
				o.Processor.MaxAbandoned = 2 * demo.MaxKills // it is killed on purpose
			}),

			inbox.Channel("orders.events",
				inbox.Kafka(kafkaconsumer.Config{
					Brokers: cfg.Brokers, Topics: []string{cfg.Topic}, GroupID: cfg.Group,
					SessionTimeout: cfg.Session, HeartbeatInterval: cfg.Session / 6,
				}),
				inbox.On("order.placed",
					inbox.From[*NotifyCustomer](notifyCustomer),
					inbox.Tx(bookRevenue, BookRevenue),
				),
			),
		),
	)
}

// OpenDatabase opens the database, with the application's own table; Fx calls it.
func OpenDatabase(cfg Config, lc fx.Lifecycle) (*gorm.DB, error) {
	return demo.OpenIn(lc, cfg.Database, &RevenueEntry{})
}
