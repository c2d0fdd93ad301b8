// Package demo is what the examples that run as demonstrations share: a command that is judged by a
// ledger, an environment whose data is removed at the end, worker processes, and crashes of them.
// What a user would copy is in the examples.
package demo

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
	Balanced   = iota // the ledger balances, or help was asked for
	Unbalanced        // the ledger does not balance, there is none, or the run failed
	Misused           // the flags are wrong, and nothing was done
)

// Command is a program that is judged by a ledger. S holds the settings that its own flags set. Every
// Command also has the flags -postgres, -mysql and -keep.
type Command[S any] struct {
	// Name begins the program's error messages and the names of what it creates.
	Name string
	// Seeded adds the flag -seed, which makes Environment.Random repeatable.
	Seeded bool
	// Flags declares the flags, which set s.
	Flags func(flags *Flags, s *S)
	// Check validates or completes the settings after the flags are parsed. It may be nil.
	Check func(s *S) error
	// Demonstrate runs until it is done or ctx ends. The ledger is nil if there is nothing to judge;
	// otherwise it is printed even if there is an error.
	Demonstrate func(ctx context.Context, env *Environment, s S) (*Ledger, error)
}

// Main is the program's main function. SIGINT and SIGTERM interrupt it.
func (c Command[S]) Main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := c.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(status)
}

// Run runs the command and returns the exit status.
func (c Command[S]) Run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int) {
	s, o, err := c.Parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return Balanced
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
		return Misused
	}
	o.Out = stdout
	ledger, err := c.demonstrate(ctx, o, s)
	if ledger != nil {
		ledger.Print(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
	}
	if err != nil || !ledger.Balanced() {
		return Unbalanced
	}
	return Balanced
}

func (c Command[S]) demonstrate(ctx context.Context, o Options, s S) (*Ledger, error) {
	env, err := NewEnvironment(o)
	if err != nil {
		return nil, err
	}
	ledger, err := c.Demonstrate(ctx, env, s)
	interrupted := ctx.Err() != nil
	if err != nil && interrupted {
		ledger, err = nil, fmt.Errorf("interrupted: %w", err) // before it could be judged
	}
	keep := o.Keep || (err != nil || !ledger.Balanced()) && !interrupted
	// Cleaning up goes on after an interrupt.
	return ledger, errors.Join(err, env.Close(context.WithoutCancel(ctx), keep))
}

// Parse parses the arguments.
func (c Command[S]) Parse(args []string, stderr io.Writer) (s S, o Options, err error) {
	o.Name = c.Name
	flags := &Flags{FlagSet: flag.NewFlagSet(c.Name, flag.ContinueOnError)}
	flags.SetOutput(stderr)
	var postgres, mysql string
	flags.StringVar(&postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite: schemas or databases of its own")
	flags.StringVar(&mysql, "mysql", "", "`DSN` of a MySQL or MariaDB instead of SQLite: databases of its own")
	flags.checks = append(flags.checks, func() error {
		switch o.Server = postgres + mysql; {
		case postgres != "" && mysql != "":
			return errors.New("-postgres and -mysql: choose one")
		case mysql != "" && !OnMySQL(mysql):
			return errors.New("-mysql: must be user:password@tcp(host:port)/database")
		}
		return nil
	})
	flags.BoolVar(&o.Keep, "keep", false, "leave everything behind that the run has created")
	if c.Seeded {
		flags.Uint64Var(&o.Seed, "seed", 0, "makes the run's choices repeatable; 0 takes one from the clock")
	}
	c.Flags(flags, &s)
	if c.Check != nil {
		flags.checks = append(flags.checks, func() error { return c.Check(&s) })
	}
	if err := flags.Parse(args); err != nil {
		return s, o, err
	}
	if flags.NArg() > 0 {
		return s, o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano()) % 1_000_000 // short enough to type again
	}
	for _, check := range flags.checks {
		err = errors.Join(err, check())
	}
	return s, o, err
}

// Flags are the flags of a Command.
type Flags struct {
	*flag.FlagSet
	checks []func() error
}

// IntWithin declares a flag whose value must be at least least and at most most.
func (f *Flags) IntWithin(p *int, name string, value, least, most int, usage string) {
	f.IntVar(p, name, value, fmt.Sprintf("%s; %d to %d", usage, least, most))
	f.checks = append(f.checks, func() error { return Within("-"+name, *p, least, most) })
}

// Within returns an error unless a flag's value is at least least and at most most.
func Within(flag string, value, least, most int) error {
	if value < least || value > most {
		return fmt.Errorf("%s = %d: must be %d to %d", flag, value, least, most)
	}
	return nil
}
