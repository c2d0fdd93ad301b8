package main

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Config is what the service takes from its environment.
type Config struct {
	Database string // a DSN, see OpenDatabase
	Brokers  []string
	Topic    string
	Group    string
	Outgoing string // the file that stands for the mail server
	Session  time.Duration
}

// ConfigFromEnv reads the variables that Config.Env writes.
func ConfigFromEnv() (Config, error) {
	session, err := time.ParseDuration(cmp.Or(os.Getenv("KAFKA_SESSION"), "10s"))
	cfg := Config{
		Database: os.Getenv("DATABASE"), Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		Topic: os.Getenv("KAFKA_TOPIC"), Group: os.Getenv("KAFKA_GROUP"),
		Outgoing: os.Getenv("OUTGOING_MAIL"), Session: session,
	}
	if cfg.Database == "" || cfg.Outgoing == "" {
		err = errors.Join(err, errors.New("DATABASE and OUTGOING_MAIL must be set"))
	}
	return cfg, err
}

// Env writes the variables that ConfigFromEnv reads.
func (c Config) Env() []string {
	return []string{
		"DATABASE=" + c.Database, "KAFKA_BROKERS=" + strings.Join(c.Brokers, ","), "KAFKA_TOPIC=" + c.Topic,
		"KAFKA_GROUP=" + c.Group, "OUTGOING_MAIL=" + c.Outgoing, "KAFKA_SESSION=" + c.Session.String(),
	}
}

// Service is the application: a database, what its handlers need, and an
// inbox. It differs from one in production in its impatience only: retries
// and the recovery of a killed worker's claims and of its lock take seconds,
// not minutes.
func Service(cfg Config) *fx.App {
	return fx.New(
		fx.Supply(cfg),
		fx.Provide(
			zap.NewProduction,
			fx.Annotate(OpenServiceDatabase, fx.ResultTags(`name:"orders"`)), // *gorm.DB
			NewMailer,
			NewNotifyCustomer,
		),
		fx.WithLogger(func(log *zap.Logger) fxevent.Logger {
			own := &fxevent.ZapLogger{Logger: log}
			own.UseLogLevel(zap.DebugLevel)
			return own
		}),

		inbox.Module("orders",
			inbox.Configure(func(o *inbox.Options) {
				o.Migrate = true
				o.Processor.MaxRetries = 3
				o.Processor.MaxRetryDelay = time.Second
				o.Processor.HeartbeatInterval = 500 * time.Millisecond
				o.Processor.SweepInterval = 500 * time.Millisecond
				o.Processor.WorkerTimeout = 2 * time.Second
				o.Processor.MaxAbandoned = 100 // it is killed on purpose
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
