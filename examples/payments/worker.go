package main

import (
	"context"
	"errors"
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
	c := Config{Name: os.Getenv("WORKER_NAME"), Transport: os.Getenv("TRANSPORT"), Database: os.Getenv("DATABASE"),
		Calls: os.Getenv("CALLS"),
		Redis: os.Getenv("REDIS"), Run: os.Getenv("RUN")}
	if c.Name == "" || c.Transport == "" || c.Database == "" || c.Calls == "" {
		return c, errors.New("WORKER_NAME, TRANSPORT, DATABASE and CALLS must be set")
	}
	return c, nil
}

// Env writes the variables that ConfigFromEnv reads.
func (c Config) Env() []string {
	return []string{"WORKER_NAME=" + c.Name, "TRANSPORT=" + c.Transport, "DATABASE=" + c.Database, "CALLS=" + c.Calls,
		"REDIS=" + c.Redis, "RUN=" + c.Run}
}

// RunWorker is a worker's work: it handles deliveries until ctx ends.
func RunWorker(ctx context.Context) (err error) {
	cfg, err := ConfigFromEnv()
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
