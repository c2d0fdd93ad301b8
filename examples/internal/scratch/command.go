package scratch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Exit statuses of a Command.
const (
	Balanced   = iota // its ledger balances, or it was asked for help
	Unbalanced        // it does not, or there is none, or something else failed
	Misused           // the flags are wrong, and nothing was done
)

// ErrInterrupted says that a run was ended before there was anything to judge.
var ErrInterrupted = errors.New("interrupted")

// Command is a program that does something, and is judged by a ledger of it. S
// are the settings that its flags make, L is a pointer to the ledger.
type Command[S any, L Ledger] struct {
	// Name begins the program's error messages.
	Name string
	// Flags declares the flags, which set s.
	Flags func(flags *flag.FlagSet, s *S)
	// Check refuses settings, or completes them, when the flags are parsed.
	Check func(s *S) error
	// Demonstrate does it, printing to out, until ctx ends. The ledger is nil
	// if there is none to judge; otherwise it counts, whatever the error.
	Demonstrate func(ctx context.Context, s S, out io.Writer) (ledger L, err error)
}

// Main is the program's main function: it runs the command, which SIGINT and
// SIGTERM interrupt, and exits.
func (c Command[S, L]) Main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := c.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(status)
}

// Run runs the command and returns the exit status.
func (c Command[S, L]) Run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int) {
	s, err := c.Parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return Balanced
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
		return Misused
	}
	ledger, err := c.Demonstrate(ctx, s, stdout)
	return c.Verdict(ledger, err, stdout, stderr)
}

// Parse makes settings of the arguments.
func (c Command[S, L]) Parse(args []string, stderr io.Writer) (s S, err error) {
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	c.Flags(flags, &s)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	return s, c.Check(&s)
}

// Verdict prints the outcome and gives it an exit status.
func (c Command[S, L]) Verdict(ledger L, err error, stdout, stderr io.Writer) (status int) {
	var none L
	if ledger != none {
		ledger.Print(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
	}
	if Failed(ledger, err) {
		return Unbalanced
	}
	return Balanced
}

// Within is nil if a flag's value is at least least and at most most.
func Within(flag string, value, least, most int) error {
	if value < least || value > most {
		return fmt.Errorf("%s = %d: must be %d to %d", flag, value, least, most)
	}
	return nil
}

// Seed takes a seed from the clock if there is none yet, short enough to be
// typed again.
func Seed(given uint64) uint64 {
	if given != 0 {
		return given
	}
	return uint64(time.Now().UnixNano()) % 1_000_000
}
