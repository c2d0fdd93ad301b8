package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/clock"
)

// workerEnv is the variable that passes the settings to a worker process.
const workerEnv = "INBOX_TEST_WORKER"

// readyLine is what a worker prints once it runs.
const readyLine = "ready"

// The exit statuses of a worker.
const (
	exitFailed   = 1
	exitSettings = 2
	exitOrphaned = 3
)

// MainIfWorker runs the worker and does not return in a process that StartWorker started. Call it
// first in main or TestMain.
func MainIfWorker() {
	text := os.Getenv(workerEnv)
	if text == "" {
		return
	}
	var s Settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", workerEnv, err)
		os.Exit(exitSettings)
	}
	s.machine = &clock.Jumping{}
	s.machine.Set(s.ClockOffset)
	go func() { // the parent holds the other end until it dies, and sends what SetClock sets
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			ahead, err := time.ParseDuration(lines.Text())
			if err != nil {
				fmt.Fprintln(os.Stderr, "clock:", err)
				os.Exit(exitSettings)
			}
			s.machine.Set(ahead)
		}
		os.Exit(exitOrphaned)
	}()
	run := func() error { return work(app(s)) }
	if s.CleansOnly {
		run = s.clean
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

// CleanedLine is the log line of a cleanup that succeeded, by a worker that only cleans.
const CleanedLine = "cleaned"

// work is like fx.App.Run, but returns an error that says what failed.
func work(app *fx.App) error {
	starting, cancel := context.WithTimeout(context.Background(), app.StartTimeout())
	defer cancel()
	if err := app.Start(starting); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	<-app.Wait()
	stopping, cancel := context.WithTimeout(context.Background(), app.StopTimeout())
	defer cancel()
	if err := app.Stop(stopping); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// clean cleans until the process is asked to end. A cleanup that fails because a server is down is repeated.
func (s Settings) clean() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db, err := Open(s.DSN)
	if err != nil {
		return err
	}
	ib, err := inbox.New(InboxName, db, s.Options(&Handlers{}, zap.NewNop())...)
	if err != nil {
		return err
	}
	fmt.Println(readyLine)
	for {
		if _, err := ib.Cleanup(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "cleanup:", err)
		} else {
			fmt.Fprintln(os.Stderr, CleanedLine)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cleanupInterval):
		}
	}
}

// app is an application as a user would write it.
func app(s Settings) *fx.App {
	config := zap.NewDevelopmentConfig()
	config.Level.SetLevel(zap.InfoLevel)
	config.DisableStacktrace = true
	log, err := config.Build()
	if err != nil {
		return fx.New(fx.Error(err))
	}
	h := &Handlers{}
	var running *inbox.Inbox
	if s.publishes() {
		h.inbox = func() *inbox.Inbox { return running }
	}
	return fx.New(
		fx.NopLogger,
		fx.StopTimeout(s.StopDeadline()),
		fx.Provide(fx.Annotate(func(lc fx.Lifecycle) (*gorm.DB, error) {
			db, err := Open(s.DSN)
			if err != nil {
				return nil, err
			}
			pool, err := db.DB()
			if err != nil {
				return nil, err
			}
			lc.Append(fx.StopHook(func() error { // runs after the inbox has stopped
				return errors.Join(printCounters(running), pool.Close())
			}))
			h.effects = pool
			if s.EffectsDSN != "" {
				if h.effects, err = OpenSQL(s.EffectsDSN); err != nil {
					return nil, err
				}
				lc.Append(fx.StopHook(h.effects.Close))
			}
			return db, nil
		}, fx.ResultTags(fmt.Sprintf("name:%q", InboxName)))),
		inbox.Module(InboxName, s.Options(h, log)...),
		// Before the inbox starts, because handlers publish with it.
		fx.Invoke(fx.Annotate(func(ib *inbox.Inbox) { running = ib }, fx.ParamTags(fmt.Sprintf("name:%q", InboxName)))),
		fx.Invoke(fx.Annotate(func(lc fx.Lifecycle, ib *inbox.Inbox) {
			lc.Append(fx.StartHook(func(context.Context) { fmt.Println(readyLine) }))
		}, fx.ParamTags("", fmt.Sprintf("name:%q", InboxName)))),
	)
}

// countersLine is the prefix of the log line with a worker's counters.
const countersLine = "counters: "

// printCounters logs the counters. They go to the log because nothing reads the standard output any
// more.
func printCounters(ib *inbox.Inbox) error {
	if ib == nil {
		return nil // it was never started
	}
	text, err := json.Marshal(ib.Counters())
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%s%s\n", countersLine, text)
	return nil
}
