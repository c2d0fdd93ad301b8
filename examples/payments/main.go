// Command payments shows a handler that is wrapped to handle each message once,
// under a transport that owns its retries: no Kafka, no inbox and no processor.
//
//	go run -C examples ./payments
//
// needs nothing but Go. A queue in this program sends 1,000 payments, each one
// to five times, some of them at the same moment, to three workers, each a
// process of its own (this program, started again) with four consumers; what a
// worker does not acknowledge comes again. Eight times a worker kills itself
// by SIGKILL: before the handler, between the handler's two writes, after the
// handler before anybody remembers it, and after that before the
// acknowledgement. It is started again.
//
// The part to copy is payments.go: the handler, and three lines around it. When
// everything has ended, the database is read and judged by what was sent:
//
//	payments    that were sent
//	applied     payments that have an entry in the books
//	lost        payments that have none
//	doubled     entries beyond the first of a payment
//	duplicates  deliveries beyond the first of a payment, redeliveries included
//	kills       how often a worker killed itself
//	reruns      calls of the handler beyond the first of a payment: its worker was killed in it
//
// Besides, each account must have what its entries say, and the store must
// remember each payment. The exit status is 0 only then. All figures but
// duplicates and kills are read back from the database or, for reruns, from a
// file in which the handler notes each call.
//
// By default the markers of processed payments are in the database of the
// books, in the transaction that writes them: exactly once. With -redis they
// are in Redis, the books in the database as before. Then a worker that is
// killed between the two leaves effects that nobody remembers:
//
//	applied_again  entries beyond the first, of payments whose worker was killed meanwhile
//
// It runs on Linux and macOS. Flags:
//
//	-messages 1000  payments
//	-workers 3      processes that handle them
//	-crash 8        how often one of them kills itself
//	-seed 0         makes payments, deliveries and kills repeatable; 0 takes one from the clock
//	-postgres DSN   PostgreSQL instead of SQLite, in a schema of its own
//	-redis ADDRESS  markers in Redis, host:port or a URL, under a prefix of their own
//	-keep           leave schema, markers and files behind
package main

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

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var status int
	if os.Getenv(roleVariable) != "" {
		status = RunWorker(ctx)
	} else {
		status = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	cancel()
	os.Exit(status)
}

// Settings are the flags.
type Settings struct {
	Messages, Workers, Kills int
	Seed                     uint64
	Postgres                 string
	Redis                    string // a URL
	Keep                     bool
}

func parse(args []string, stderr io.Writer) (s Settings, err error) {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.Messages, "messages", 1000, "payments")
	flags.IntVar(&s.Workers, "workers", 3, "processes that handle them")
	flags.IntVar(&s.Kills, "crash", 8, "how often one of them kills itself")
	flags.Uint64Var(&s.Seed, "seed", 0, "makes payments, deliveries and kills repeatable; 0 takes one from the clock")
	flags.StringVar(&s.Postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite")
	flags.StringVar(&s.Redis, "redis", "", "`address` of a Redis for the markers")
	flags.BoolVar(&s.Keep, "keep", false, "leave schema, markers and files behind")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"-messages", s.Messages, 1, 100_000}, {"-workers", s.Workers, 1, 20}, {"-crash", s.Kills, 0, min(maxKills, s.Messages/4)},
	} {
		if f.value < f.least || f.value > f.most {
			err = errors.Join(err, fmt.Errorf("%s is %d, allowed is %d to %d", f.name, f.value, f.least, f.most))
		}
	}
	if s.Seed == 0 {
		s.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	s.Redis = RedisURL(s.Redis)
	return s, err
}

// Exit statuses.
const (
	balanced = iota
	unbalanced
	misused
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int) {
	s, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return balanced
	}
	if err != nil {
		fmt.Fprintln(stderr, "payments:", err)
		return misused
	}
	ledger, err := Demonstrate(ctx, s, stdout)
	return verdict(ledger, err, stdout, stderr)
}

// verdict prints the outcome and gives it an exit status.
func verdict(ledger *Ledger, err error, stdout, stderr io.Writer) (status int) {
	if ledger != nil {
		ledger.Print(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "payments:", err)
	}
	if err != nil || !ledger.Balanced() {
		return unbalanced
	}
	return balanced
}
