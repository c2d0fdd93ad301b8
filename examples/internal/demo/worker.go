package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// workerVariable makes the program a worker and holds its configuration.
const workerVariable = "INBOX_EXAMPLE_WORKER"

// IsWorker reports whether this process was started by Process.Start.
func IsWorker() bool { return os.Getenv(workerVariable) != "" }

// Work is a worker's main function: it works until SIGTERM ends ctx, and exits. It also exits when
// its parent does.
func Work[C any](work func(ctx context.Context, config C) error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The parent holds the other end of standard input and never writes.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var config C
	err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &config)
	if err == nil {
		err = work(ctx, config)
	}
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// KillSelf ends this process as a crash would: nothing in it runs after that.
func KillSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal arrives
}

// encode encodes a worker's configuration.
func encode(config any) (string, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode the worker's configuration: %w", err)
	}
	return string(text), nil
}
