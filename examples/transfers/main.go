// Command transfers shows transactional handlers, lanes and recovery where
// mistakes cost money: a bank whose workers are killed while they book.
//
//	go run -C examples ./transfers
//
// needs nothing but Go. A producer accepts 10,000 transfers between 100
// accounts into an inbox in a SQLite file, some of them more than once, as
// producers do that do not know whether they were heard. Meanwhile three
// workers, each a process of its own (this program, started again), book them:
// exactly once, and for each paying account in the order of acceptance, since
// what it can still afford depends on that. Some transfers fail a few times
// before they succeed. Five times a worker is killed by SIGKILL in the middle
// of its work and started again. With SQLite one worker books at a time and
// another takes over when it is killed; with PostgreSQL all do.
//
// The part to copy is bank.go (the tables and the handler) and worker.go (the
// inbox). When everything has ended, the database is read and judged by what
// was accepted:
//
//	expected      transfers that were accepted
//	effects       transfers in the bank's journal, each written by one call of the handler
//	lost          expected ones that are not in it
//	doubled       entries beyond the first of a transfer
//	out_of_order  entries that come after one of the same account that was accepted later
//	kills         how often a worker was killed
//	reruns        calls of the handler beyond the first of a transfer: after a failure, a kill, or a repeated group
//
// Besides, each account must have what a replay of all transfers in their
// order gives it, the accounts together must have what they had at the start,
// and nothing may be left in the inbox. The exit status is 0 only then. All
// figures but kills are read back from the database or, for reruns, from a
// file in which the handler notes each call.
//
// It runs on Linux and macOS. Flags:
//
//	-transfers 10000  how many
//	-accounts 100     between how many accounts
//	-workers 3        processes that book them
//	-kills 5          how often one of them is killed
//	-group 10         transfers that share a commit; 1 commits each by itself
//	-seed 0           makes transfers and kills repeatable; 0 takes one from the clock
//	-postgres DSN     PostgreSQL instead of SQLite, in a schema of its own
//	-keep             leave schema and files behind
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
	Transfers, Accounts, Workers, Kills, Group int
	Seed                                       uint64
	Postgres                                   string
	Keep                                       bool
}

func declare(flags *flag.FlagSet, s *Settings) {
	flags.IntVar(&s.Transfers, "transfers", 10_000, "how many transfers")
	flags.IntVar(&s.Accounts, "accounts", 100, "between how many accounts")
	flags.IntVar(&s.Workers, "workers", 3, "processes that book them")
	flags.IntVar(&s.Kills, "kills", 5, "how often one of them is killed")
	flags.IntVar(&s.Group, "group", 10, "transfers that share a commit; 1 commits each by itself")
	flags.Uint64Var(&s.Seed, "seed", 0, "makes transfers and kills repeatable; 0 takes one from the clock")
	flags.StringVar(&s.Postgres, "postgres", "", "`DSN` of a PostgreSQL instead of SQLite")
	flags.BoolVar(&s.Keep, "keep", false, "leave schema and files behind")
}

func check(s *Settings) error {
	s.Seed = scratch.Seed(s.Seed)
	return errors.Join(
		scratch.Within("-transfers", s.Transfers, 1, 1_000_000),
		scratch.Within("-accounts", s.Accounts, 2, 100_000),
		scratch.Within("-workers", s.Workers, 1, 20),
		scratch.Within("-kills", s.Kills, 0, maxKills),
		scratch.Within("-group", s.Group, 1, 100),
	)
}
