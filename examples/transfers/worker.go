package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/handler"
)

// Where transfers arrive, and what their messages are called.
const (
	payments          = "payments"
	transferRequested = "transfer.requested"
)

// NewInbox declares the bank's inbox: the workers run it, the producer only
// accepts with it. It differs from one in production in its impatience:
// retries, and the recovery from a killed worker, take seconds, not minutes.
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
			o.Processor.MaxAbandoned = 2 * maxKills // they are killed on purpose
		}),

		inbox.Channel(payments,
			inbox.On(transferRequested,
				inbox.Tx(applyTransfer, bank.ApplyTransfer, handler.Ordered(), handler.TxGroup(group)),
			),
		),
	)
}

// Config is what a worker takes from its environment.
type Config struct {
	Name     string
	Database string // a DSN, see OpenDatabase
	Calls    string // the file in which the handler notes its calls
	Group    int
}

// ConfigFromEnv reads the variables that Config.Env writes.
func ConfigFromEnv() (Config, error) {
	group, err := strconv.Atoi(os.Getenv("TRANSFERS_GROUP"))
	if err != nil {
		err = fmt.Errorf("TRANSFERS_GROUP: %w", err)
	}
	c := Config{Name: os.Getenv("WORKER_NAME"), Database: os.Getenv("DATABASE"), Calls: os.Getenv("CALLS"), Group: group}
	if c.Name == "" || c.Database == "" || c.Calls == "" {
		err = errors.Join(err, errors.New("WORKER_NAME, DATABASE and CALLS must be set"))
	}
	return c, err
}

// Env writes the variables that ConfigFromEnv reads.
func (c Config) Env() []string {
	return []string{"WORKER_NAME=" + c.Name, "DATABASE=" + c.Database, "CALLS=" + c.Calls, "TRANSFERS_GROUP=" +
		strconv.Itoa(c.Group)}
}

// RunWorker is a worker's work: it books until ctx ends.
func RunWorker(ctx context.Context) (err error) {
	cfg, err := ConfigFromEnv()
	if err != nil {
		return err
	}
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	db, err := OpenDatabase(cfg.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scratch.Close(db)) }()
	calls, err := scratch.OpenCalls(cfg.Calls)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, calls.Close()) }()

	ib, err := NewInbox(db, &Bank{worker: cfg.Name, calls: calls}, cfg.Group, log)
	if err != nil {
		return err
	}
	// A stop that comes during the start follows it.
	if err := ib.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	return ib.Stop(stopping)
}
