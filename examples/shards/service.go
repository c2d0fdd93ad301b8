package main

import (
	"context"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// channel is where deposits arrive.
const channel = "deposits"

// Config is what a process of a shard gets at its start.
type Config struct {
	Shard      string
	Database   string // a DSN, see demo.Open
	Brokers    []string
	Topic      string
	Group      string // the shard's own
	Partitions []int  // the shard's in the table
	Session    time.Duration
	Calls      string // the file in which the handler notes its calls
}

// NewInbox declares a shard's inbox. It has the shard's name, so no process starts on another shard's database. Only
// its timing differs from production: retries and the recovery of a killed process's claims take seconds, not minutes.
func NewInbox(cfg Config, db *gorm.DB, book *Book, log *zap.Logger) (*inbox.Inbox, error) {
	return inbox.New(cfg.Shard, db,
		inbox.Configure(func(o *inbox.Options) {
			o.Logger = log
			o.Migrate = true
			o.Processor.MaxRetries = 10
			o.Processor.MaxRetryDelay = 200 * time.Millisecond
			o.Processor.HeartbeatInterval = 500 * time.Millisecond
			o.Processor.SweepInterval = 500 * time.Millisecond
			o.Processor.WorkerTimeout = 3 * time.Second
			o.Processor.MaxAbandoned = 2 * demo.MaxKills // they are killed on purpose
		}),

		inbox.Channel(channel,
			inbox.Kafka(kafkaconsumer.Config{
				Brokers: cfg.Brokers, Topics: []string{cfg.Topic}, GroupID: cfg.Group, Partitions: cfg.Partitions,
				StartOffset: kafkaconsumer.None, SessionTimeout: cfg.Session, HeartbeatInterval: cfg.Session / 6,
				CommitInterval: time.Second, // so that a kill leaves records that are stored and not committed
			}),
			inbox.On("deposit.made", inbox.Tx(bookDeposit, book.Deposit, handler.Ordered(), handler.TxGroup(10))),
		),
	)
}

// connections are enough for the inbox's default Concurrency of 10, and what it needs beside its handlers.
const connections = 15

// RunWorker is a process of a shard, until ctx ends. The end of the process closes the file and the database.
func RunWorker(ctx context.Context, cfg Config) error {
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	db, err := demo.Open(cfg.Database, connections)
	if err != nil {
		return err
	}
	if err := db.AutoMigrate(&Account{}, &Entry{}); err != nil {
		return err
	}
	calls, err := demo.OpenLines(cfg.Calls)
	if err != nil {
		return err
	}
	ib, err := NewInbox(cfg, db, &Book{calls}, log)
	if err != nil {
		return err
	}
	// A stop that is requested during the start happens after it.
	if err := ib.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	return ib.Stop(stopping)
}
