// Command inboxctl is for operators of an inbox: it shows what is stored, and
// retries, discards, deletes, pauses and migrates, over package ops, as the
// dashboard does (contract 11.1). docs/inboxctl.md is its reference.
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
	// The first signal asks to stop; the second ends the process at once. That
	// must hold before anybody is told so: a second one that comes right behind
	// the words would be lost.
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

// system is what the program has of its surroundings.
type system struct {
	in          io.Reader
	out, errOut io.Writer
	getenv      func(string) string
}
