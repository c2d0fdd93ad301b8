// Command transfers shows transactional handlers, lanes and recovery where mistakes cost money: a bank
// whose workers are killed while they book.
//
//	go run -C examples ./transfers
//
// needs nothing but Go. A producer accepts 10,000 transfers between 100 accounts into an inbox in a
// SQLite file, some of them more than once, as producers do after a lost response. Meanwhile three
// workers, each a process of its own (this program, started again), book them: exactly once, and for
// each paying account in the order of acceptance, since what it can still afford depends on that. Some
// transfers fail a few times before they succeed. Five times a worker is killed by SIGKILL in the middle
// of its work and started again. With SQLite one worker books at a time and another takes over when it is
// killed; with PostgreSQL and MariaDB (-postgres, -mysql) all do.
//
// The part to copy is bank.go (the tables and the handler) and worker.go (the inbox). When everything
// has ended, the database is read and judged by what was accepted:
//
//	expected      transfers that were accepted
//	effects       transfers in the bank's journal, each written by one call of the handler
//	lost          expected ones that are not in it
//	doubled       entries beyond the first of a transfer
//	out_of_order  entries that come after one of the same account that was accepted later
//	kills         how often a worker was killed
//	reruns        calls of the handler beyond the first of a transfer: after a failure, a kill, or a repeated group
//
// Besides, accounts and postings must be those of a replay of all transfers in their order, so no money comes or
// goes, and nothing may be left in the inbox. The exit status is 0 only then. All figures but kills are read back
// from the database or, for reruns, from a file in which the handler notes each call.
//
// It runs on Linux and macOS; -h lists its flags.
package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

var command = demo.Command[Settings]{Name: "transfers", Seeded: true, Flags: declare, Demonstrate: Demonstrate}

func main() {
	if !demo.IsWorker() {
		command.Main()
	}
	demo.Work(RunWorker)
}

// Settings are the flags.
type Settings struct{ Transfers, Accounts, Workers, Kills, Group int }

func declare(flags *demo.Flags, s *Settings) {
	flags.IntWithin(&s.Transfers, "transfers", 10_000, 1, 1_000_000, "how many transfers")
	flags.IntWithin(&s.Accounts, "accounts", 100, 2, 100_000, "between how many accounts")
	flags.IntWithin(&s.Workers, "workers", 3, 1, 20, "processes that book them")
	flags.IntWithin(&s.Kills, "kills", 5, 0, demo.MaxKills, "how often one of them is killed")
	flags.IntWithin(&s.Group, "group", 10, 1, 100, "transfers that share a commit")
}

// Demonstrate accepts transfers, has workers book them, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (*demo.Ledger, error) {
	bank, err := env.Database(ctx, "bank")
	if err != nil {
		return nil, err
	}
	transfers, opening := MakeTransfers(s.Transfers, s.Accounts, env.Random), OpeningBalance(s.Transfers, s.Accounts)
	if err := OpenAccounts(ctx, bank.DB, s.Accounts, opening); err != nil {
		return nil, err
	}
	producer, err := NewProducer(ctx, bank.DB, rand.New(rand.NewPCG(env.Seed, 1)))
	if err != nil {
		return nil, err
	}
	calls := env.File("calls.log")
	workers, err := env.Workers(s.Workers, func(name string) any {
		return Config{Name: name, Database: bank.DSN, Calls: calls, Group: s.Group}
	})
	if err != nil {
		return nil, err
	}
	env.Say("%d transfers between %d accounts (seed %d), %d workers; %s", s.Transfers, s.Accounts, env.Seed,
		s.Workers, env)
	crashes := &demo.Crashes{Env: env, Workers: workers, Kills: s.Kills, Window: 3 * time.Second,
		Read: func(ctx context.Context) (demo.Tally, error) { return demo.ReadTally(ctx, bank.DB) },
		Busy: func(ctx context.Context) (string, error) { return ReadLastWorker(ctx, bank.DB) },
		Done: func(_ context.Context, t demo.Tally) (bool, error) {
			if t.Poisoned > 0 { // no transfer fails often enough for that
				return false, errors.New("a transfer is poisoned: its lane waits until an operator retries or discards it")
			}
			return t.Completed >= int64(len(transfers)), nil
		}}
	took, runErr := workers.During(ctx, func(ctx context.Context) error {
		return demo.RunCrashes(ctx, crashes, transfers, producer.Send)
	})
	// The result is read even if the run failed: it shows how far things went.
	result, err := ReadResult(ctx, bank.DB, calls)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	env.Say("%.1f seconds; %d transfers were accepted again", took.Seconds(), producer.repeated)
	return Balance(transfers, Replay(transfers, s.Accounts, opening), result, crashes.Killed), runErr
}
