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
//	payments     that were sent
//	applied      payments that have an entry in the books
//	lost         payments that have none
//	doubled      entries beyond the first of a payment
//	duplicates   deliveries beyond the first of a payment, redeliveries included
//	kills        how often a worker killed itself
//	calls_again  calls of the handler beyond the first of a payment: its worker was killed in it
//
// Besides, each account must have what its entries say, and the store must
// remember each payment. The exit status is 0 only then. All figures but
// duplicates and kills are read back from the database or, for calls_again, from a
// file in which the handler notes each call.
//
// By default the markers of processed payments are in the database of the
// books, in the transaction that writes them: exactly once. With -redis they
// are in Redis, the books in the database as before. Then a worker that is
// killed between the two leaves effects that nobody remembers:
//
//	reruns  entries beyond the first, of payments whose worker was killed meanwhile
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
	"errors"
	"flag"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

var command = scratch.Command[Settings, *Ledger]{Name: program.Name, Flags: declare, Check: check,
	Demonstrate: Demonstrate}

func main() {
	if scratch.IsWorker() {
		scratch.Work(RunWorker)
	} else {
		command.Main()
	}
}

// Settings are the flags.
type Settings struct {
	Messages, Workers, Kills int
	Seed                     uint64
	Postgres                 string
	Redis                    string // a URL
	Keep                     bool
}

func declare(flags *flag.FlagSet, s *Settings) {
	flags.IntVar(&s.Messages, "messages", 1000, "payments")
	flags.IntVar(&s.Workers, "workers", 3, "processes that handle them")
	flags.IntVar(&s.Kills, "crash", 8, "how often one of them kills itself")
	flags.Uint64Var(&s.Seed, "seed", 0, "makes payments, deliveries and kills repeatable; 0 takes one from the clock")
	flags.StringVar(&s.Postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite")
	flags.StringVar(&s.Redis, "redis", "", "`address` of a Redis for the markers")
	flags.BoolVar(&s.Keep, "keep", false, "leave schema, markers and files behind")
}

func check(s *Settings) error {
	s.Seed = scratch.Seed(s.Seed)
	s.Redis = RedisURL(s.Redis)
	return errors.Join(
		scratch.Within("-messages", s.Messages, 1, 100_000),
		scratch.Within("-workers", s.Workers, 1, 20),
		scratch.Within("-crash", s.Kills, 0, min(maxKills, s.Messages/4)),
	)
}
