// Command inboxctl is the command line for operators of an inbox (contract 11.1). It shows what is
// stored, and retries, discards, deletes, pauses and migrates. Like the dashboard, it is built on
// package ops. docs/inboxctl.md is its reference.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(mainCode()) }

func mainCode() int {
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	// The first signal asks the program to stop. The second ends the process at once. Signals are
	// reset before the program says so, so that a second signal right after the message is not
	// lost.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
		}
		signal.Stop(signals)
		interrupt()
	}()
	return run(ctx, os.Args[1:], system{in: os.Stdin, out: os.Stdout, errOut: os.Stderr, getenv: os.Getenv})
}

// system is the program's environment: its standard streams and its variables.
type system struct {
	in          io.Reader
	out, errOut io.Writer
	getenv      func(string) string
}
