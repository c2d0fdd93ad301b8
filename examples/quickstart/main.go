// Command quickstart shows an inbox at work, and proves it by a ledger.
//
//	go run -C examples ./quickstart
//
// needs nothing but Go. It produces 5,000 order events (CloudEvents as JSON)
// through an in-process Kafka, consumes them with an ordinary Fx application
// (service.go, handlers.go: the part to copy) whose inbox is a SQLite file,
// and compares what the producer knows to have sent with what is in the
// database. A tenth of the records are duplicates, some are malformed, some
// orders fail once, some always.
//
// The application is a process of its own: this program, started again. With
// -crash N it is killed by SIGKILL N times in the middle of its work: while it
// starts, joins its group, accepts or processes, as chance has it. At last
// it is stopped by SIGTERM, and only then is the ledger read:
//
//	produced              records the broker acknowledged: orders, duplicates, malformed ones
//	duplicates_sent       of these, orders that had been produced before
//	accepted              messages in the database
//	duplicates            records read that became neither a message nor a rejected row
//	rejected              malformed records, kept raw in the database
//	completed_<handler>   statuses completed by that handler
//	retried               of these, after a failure
//	poisoned              statuses of orders that always fail
//	kills                 how often the service was killed
//	reruns                mails sent again: a kill came between sending one and recording that it was sent
//	lost                  orders and malformed records that are not in the database
//	doubled               revenue entries beyond the first of an order, written by a transactional handler
//	seconds               from the start of the service until nothing was left to do
//
// All figures but kills come from the database, from the broker (what was
// produced, what was read) and, for reruns, from the file that stands for the
// mail server: a plain handler's effects are outside the database, so they
// happen at least once. The exit status is 0 only if everything balances.
//
// It runs on Linux and macOS. Flags:
//
//	-n 5000           records to produce
//	-crash 0          how often to kill the service
//	-seed 0           makes events and kills repeatable; 0 takes one from the clock
//	-postgres DSN     PostgreSQL instead of SQLite, in a schema of its own
//	-kafka h:p,h:p    real brokers, with a topic and a group of their own
//	-keep             leave schema, files and topic behind
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
	if os.Getenv(roleVariable) != "" {
		RunService()
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(status)
}

// Settings are the flags.
type Settings struct {
	Records, Kills  int
	Seed            uint64
	Postgres, Kafka string
	Keep            bool
}

func parse(args []string, stderr io.Writer) (s Settings, err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.Records, "n", 5000, "records to produce")
	flags.IntVar(&s.Kills, "crash", 0, "how often to kill the service")
	flags.Uint64Var(&s.Seed, "seed", 0, "makes events and kills repeatable; 0 takes one from the clock")
	flags.StringVar(&s.Postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite")
	flags.StringVar(&s.Kafka, "kafka", "", "`brokers` (host:port,…) instead of an in-process one")
	flags.BoolVar(&s.Keep, "keep", false, "leave schema, files and topic behind")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case s.Records < 1:
		err = fmt.Errorf("-n is %d, allowed is 1 or more", s.Records)
	case s.Kills < 0 || s.Kills > maxKills:
		err = fmt.Errorf("-crash is %d, allowed is 0 to %d", s.Kills, maxKills)
	}
	if s.Seed == 0 {
		s.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
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
		fmt.Fprintln(stderr, "quickstart:", err)
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
		fmt.Fprintln(stderr, "quickstart:", err)
	}
	if err != nil || !ledger.Balanced() {
		return unbalanced
	}
	return balanced
}
