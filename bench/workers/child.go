// Package workers runs inboxes in separate processes, which run this same program with another
// command.
package workers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
)

// Command is the first argument of a worker process, the DSN the second.
const Command = "worker"

// Serve runs a worker process. It prints "ready" and starts the inbox when it reads the first line
// of in. It prints the number of completed statuses whenever that has changed, and ends when in
// ends. Its last line is "end HANDLED CPU": the handler calls, and the CPU time in microseconds
// since the start.
func Serve(ctx context.Context, dsn string, in io.Reader, out io.Writer, options ...inbox.Option) error {
	ib, err := ours.Open(ctx, dsn, 1, options...)
	if err != nil {
		return err
	}
	defer ib.Close()
	input := bufio.NewScanner(in)
	fmt.Fprintln(out, "ready")
	if !input.Scan() {
		return input.Err()
	}
	began, err := ownCPU()
	if err != nil {
		return err
	}
	if err := ib.Start(ctx); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for input.Scan() {
		}
	}()
	if err := report(ctx, ib, out, ended); err != nil {
		return err
	}
	if err := ib.Stop(ctx); err != nil {
		return err
	}
	used, err := ownCPU()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "end", ib.Handled.Load(), (used - began).Microseconds())
	return err
}

// report prints progress until ended is closed.
func report(ctx context.Context, ib *ours.Inbox, out io.Writer, ended <-chan struct{}) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	var last int64
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return nil
		case <-ticker.C:
		}
		if n := ib.Counters().Processed; n != last {
			last = n
			if _, err := fmt.Fprintln(out, n); err != nil {
				return err
			}
		}
	}
}

func ownCPU() (time.Duration, error) {
	var self syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano()), err
}
