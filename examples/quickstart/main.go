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
	"flag"
	"fmt"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

var command = scratch.Command[Settings, *Ledger]{Name: program.Name, Flags: declare, Check: check,
	Demonstrate: Demonstrate}

func main() {
	if scratch.IsWorker() {
		RunService()
	} else {
		command.Main()
	}
}

// Settings are the flags.
type Settings struct {
	Records, Kills  int
	Seed            uint64
	Postgres, Kafka string
	Keep            bool
}

func declare(flags *flag.FlagSet, s *Settings) {
	flags.IntVar(&s.Records, "n", 5000, "records to produce")
	flags.IntVar(&s.Kills, "crash", 0, "how often to kill the service")
	flags.Uint64Var(&s.Seed, "seed", 0, "makes events and kills repeatable; 0 takes one from the clock")
	flags.StringVar(&s.Postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite")
	flags.StringVar(&s.Kafka, "kafka", "", "`brokers` (host:port,…) instead of an in-process one")
	flags.BoolVar(&s.Keep, "keep", false, "leave schema, files and topic behind")
}

func check(s *Settings) error {
	s.Seed = scratch.Seed(s.Seed)
	if s.Records < 1 {
		return fmt.Errorf("-n = %d: must be 1 or more", s.Records)
	}
	return scratch.Within("-crash", s.Kills, 0, maxKills)
}
