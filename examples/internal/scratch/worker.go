package scratch

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// roleVariable tells the program, in a process of its own, to be a worker.
const roleVariable = "INBOX_EXAMPLE_ROLE"

// IsWorker reports whether this process is one that Process.Start has started.
func IsWorker() bool { return os.Getenv(roleVariable) != "" }

// Work is a worker's main function: it works until ctx ends, which SIGTERM
// does, and exits. Nothing is left behind if the parent ends first.
func Work(work func(ctx context.Context) error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go EndWithParent()
	err := work(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// EndWithParent is for a worker that does not use Work, on a goroutine: it
// leaves no orphan behind. The parent holds the other end of standard input and
// never writes.
func EndWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}
