package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// consumers are those of each worker: deliveries that it handles at once.
const consumers = 4

// Config is what a worker takes from its environment.
type Config struct {
	Name      string
	Transport string // its address
	Database  string // a DSN, see OpenDatabase
	Calls     string // the file in which the handler notes its calls
	Redis     string // its URL, where the markers are; empty: in the database
	Run       string // names the run's keys in Redis
}

// ConfigFromEnv reads the variables that Config.Env writes.
func ConfigFromEnv() (Config, error) {
	c := Config{Name: os.Getenv("WORKER_NAME"), Transport: os.Getenv("TRANSPORT"), Database: os.Getenv("DATABASE"), Calls: os.Getenv("CALLS"),
		Redis: os.Getenv("REDIS"), Run: os.Getenv("RUN")}
	if c.Name == "" || c.Transport == "" || c.Database == "" || c.Calls == "" {
		return c, errors.New("WORKER_NAME, TRANSPORT, DATABASE and CALLS must be set")
	}
	return c, nil
}

// Env writes the variables that ConfigFromEnv reads.
func (c Config) Env() []string {
	return []string{"WORKER_NAME=" + c.Name, "TRANSPORT=" + c.Transport, "DATABASE=" + c.Database, "CALLS=" + c.Calls, "REDIS=" + c.Redis, "RUN=" + c.Run}
}

// RunWorker is a worker's main function: it handles deliveries until ctx ends,
// which a signal does, and returns the exit status.
func RunWorker(ctx context.Context) (status int) {
	go scratch.EndWithParent()
	cfg, err := ConfigFromEnv()
	if err == nil {
		err = work(ctx, cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func work(ctx context.Context, cfg Config) (err error) {
	db, err := OpenDatabase(cfg.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scratch.Close(db)) }()
	calls, err := os.OpenFile(cfg.Calls, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("calls: %w", err)
	}
	defer func() { err = errors.Join(err, calls.Close()) }()
	markers, err := OpenMarkers(db, cfg.Redis, cfg.Run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, markers.Close()) }()
	handle, err := markers.Wrap(&Book{worker: cfg.Name, calls: calls})
	if err != nil {
		return err
	}
	problems := make([]error, consumers)
	var consuming sync.WaitGroup
	for i := range problems {
		consuming.Go(func() { problems[i] = Consume(ctx, cfg.Transport, handle, killMyself) })
	}
	consuming.Wait()
	return errors.Join(problems...)
}

// killMyself ends the process as a crash would: nothing in it runs after that.
func killMyself() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal may take its time, and nothing may happen meanwhile
}
