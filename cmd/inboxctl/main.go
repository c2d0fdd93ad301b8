// Command inboxctl is the command line for operators of an inbox (contract 11.1). It shows what is stored, and retries,
// discards, deletes, pauses and migrates. Like the dashboard, it is built on package ops. docs/inboxctl.md is its
// reference.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/ops"
)

func main() { os.Exit(mainCode()) }

func mainCode() int {
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	// The first signal asks the program to stop. The second ends the process at once. Signals are reset before the
	// program says so, so that a second signal right after the message is not lost.
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

// The exit codes. exitCodesHelp documents them for users.
const (
	exitDone     = 0
	exitFailed   = 1
	exitMisuse   = 2
	exitNotFound = 3
	exitRefused  = 4
	exitPartly   = 5
	exitNotYet   = 6
)

const exitCodesHelp = `inboxctl ends with one of these codes:

  0  done
  1  failed: the database cannot be reached, its tables are missing or old, a
     statement timed out, the audit row could not be written, interrupted
     before anything was done; or the result could not be printed (the disk is
     full, for example): the action is done then, and "inboxctl audit" shows it
  2  misuse: a bad flag or argument
  3  not found: no such message, rejected message, handler key or partition, or no
     open status with that ID
  4  refused: neither poisoned nor failing, not ended, not claimed, changed by someone
     else, being processed, not halted there, not halted by one record, not
     confirmed, another worker is cleaning up, or cleanup waits for a partition that
     was never read to its end
  5  partly done: some of several are done, or it was interrupted; inboxctl prints
     what was done, and that is kept; or "status" could not count everything
  6  not yet: what was requested is not carried out within --wait, and may still be;
     or the partition has halted there again

With several statuses in one command: 0 if all are done, 5 if some are, else the
code that all errors have in common, or 1.`

// codedError is an error with its own exit code.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func misuse(format string, args ...any) error {
	return &codedError{exitMisuse, fmt.Errorf(format, args...)}
}

// errNotConfirmed is returned when the operator was asked and did not confirm.
var errNotConfirmed = errors.New("not confirmed, nothing was done")

var refusals = []error{
	errNotConfirmed, ops.ErrStale, ops.ErrAmbiguous, ops.ErrNotPoisoned, ops.ErrNotPending, ops.ErrNotCompleted,
	ops.ErrNotClaimed, ops.ErrNotSkippable, ops.ErrStillDeclared, ops.ErrPaused, ops.ErrProcessing,
	ops.ErrNeedsApplication, ops.ErrReplayOff, cleanup.ErrLeaseHeld,
}

// exitCode returns the program's exit code for an error.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	refused := func(refusal error) bool { return errors.Is(err, refusal) }
	waiting, ok := errors.AsType[*cleanup.WaitingError](err)
	switch {
	case errors.Is(err, ops.ErrBadInput):
		return exitMisuse
	case errors.Is(err, ops.ErrNotFound):
		return exitNotFound
	case errors.Is(err, ops.ErrStillHalted), errors.Is(err, ops.ErrNotYet):
		return exitNotYet
	case ok && waiting.Err == nil, slices.ContainsFunc(refusals, refused):
		return exitRefused
	}
	return exitFailed
}
