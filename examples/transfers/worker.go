package main

import (
	"context"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/handler"
)

// Where transfers arrive, and what their messages are called.
const (
	payments          = "payments"
	transferRequested = "transfer.requested"
)

// NewInbox declares the bank's inbox: the workers run it, the producer only accepts with it. Only its
// timing differs from production: retries and the recovery of a killed worker's claims take seconds, not
// minutes.
func NewInbox(db *gorm.DB, bank *Bank, group int, log *zap.Logger) (*inbox.Inbox, error) {
	return inbox.New("bank", db,
		inbox.Configure(func(o *inbox.Options) {
			o.Logger = log
			o.Migrate = true
			o.Processor.MaxRetries = 10
			o.Processor.MaxRetryDelay = 200 * time.Millisecond
			// transfers are accepted by another process, which cannot wake this one
			o.Processor.PollingInterval = 100 * time.Millisecond
			o.Processor.HeartbeatInterval = 500 * time.Millisecond
			o.Processor.SweepInterval = 500 * time.Millisecond
			o.Processor.WorkerTimeout = 3 * time.Second
			o.Processor.MaxAbandoned = 2 * demo.MaxKills // they are killed on purpose
		}),

		inbox.Channel(payments,
			inbox.On(transferRequested,
				inbox.Tx(applyTransfer, bank.ApplyTransfer, handler.Ordered(), handler.TxGroup(group)),
			),
		),
	)
}

// Config is what a worker gets at its start.
type Config struct {
	Name     string
	Database string // a DSN, see demo.Open
	Calls    string // the file in which the handler notes its calls
	Group    int
}

// connections are enough for the inbox's default Concurrency of 10, and what it needs beside its handlers.
const connections = 15

// RunWorker books until ctx ends. The end of the process closes the file and the database.
func RunWorker(ctx context.Context, cfg Config) error {
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	db, err := demo.Open(cfg.Database, connections)
	if err != nil {
		return err
	}
	calls, err := demo.OpenLines(cfg.Calls)
	if err != nil {
		return err
	}
	ib, err := NewInbox(db, &Bank{worker: cfg.Name, calls: calls}, cfg.Group, log)
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
