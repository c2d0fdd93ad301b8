// Command shards shows one topic whose partitions are divided among four databases, an outage of one of them, and a
// fifth that is added while records arrive.
//
//	go run -C examples ./shards
//
// needs nothing but Go. A producer sends 6,000 deposits for 200 accounts to a topic with eight partitions, some of them
// more than once. A table (cluster.go) says which shard owns each partition. A shard is a database, with the accounts
// beside their messages, and a process (this program, started again) that reads the partitions of its shard in a
// consumer group of its own. Deposits of an account are booked in their order.
//
// First, processes are killed by SIGKILL while they work. Then one database is blocked until the other shards have
// booked all that is theirs. Then a fifth shard takes over two partitions: one owner is stopped for that, the other one
// is killed (move.go has the steps). Then processes are killed again. While it runs, one web server has the dashboards
// of all shards.
//
// The part to copy is cluster.go (the table), service.go (the inbox), move.go (adding a shard) and web.go. When
// everything has ended, the databases are read and judged by what was sent:
//
//	expected      deposits that were sent
//	effects       deposits booked in all databases
//	lost          expected ones that are booked nowhere
//	doubled       bookings beyond the first of a deposit, in any database
//	out_of_order  bookings that are not at their deposit's place among those of the account
//	waited        records that the blocked shard had not read when all others had ended
//	moved         deposits that the fifth shard has booked
//	dashboards    shards whose dashboard answered at the end
//	kills         how often a process was killed
//	reruns        calls of the handler beyond the first of a deposit
//
// Besides, each account must be in the database of its partition's owner alone, with the sum of its deposits, and
// nothing may be left in the inboxes or unread. The exit status is 0 only then.
//
// The databases are SQLite files; with -postgres or -mysql each shard has a schema or database of that server. It runs
// on Linux and macOS; -h lists its flags.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

var command = demo.Command[Settings]{Name: "shards", Seeded: true, Flags: declare, Demonstrate: Demonstrate}

func main() {
	if !demo.IsWorker() {
		command.Main()
	}
	demo.Work(RunWorker)
}

// Settings are the flags.
type Settings struct {
	Deposits, Accounts, Kills int
	Kafka                     string
}

func declare(flags *demo.Flags, s *Settings) {
	flags.IntWithin(&s.Deposits, "deposits", 6000, 200, 1_000_000, "how many deposits")
	flags.IntWithin(&s.Accounts, "accounts", 200, 50, 100_000, "for how many accounts")
	flags.IntWithin(&s.Kills, "kills", 4, 0, demo.MaxKills, "how often a process is killed, besides one while a shard is added")
	flags.StringVar(&s.Kafka, "kafka", "", "`brokers` (host:port,…) instead of an in-process one: a topic of its own")
}

// The shards of the demonstration.
const (
	blocked = "shard3" // the outage is its database's
	added   = "shard5"
)

// moved are the partitions that the added shard takes over.
var moved = []int{4, 5}

// Demonstrate sends deposits through kills, an outage and the move of two partitions, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (*demo.Ledger, error) {
	c, err := Open(ctx, env, s.Kafka)
	if err != nil {
		return nil, err
	}
	site, err := c.ServeDashboards(ctx)
	if err != nil {
		return nil, err
	}
	env.Say("%d deposits for %d accounts (seed %d) through %s; %s\ndashboards: %s", s.Deposits, s.Accounts, env.Seed,
		c.broker, env, site)
	r := &run{cluster: c, producer: NewProducer(c, env.Random), deposits: MakeDeposits(s.Deposits, s.Accounts, env.Random)}
	runErr := r.all(ctx, s.Kills)
	// The result is read even if the run failed: it shows how far things went.
	dashboards := c.AnsweringDashboards(ctx, site)
	result, err := c.ReadResult(ctx)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	ledger := Balance(r.producer.journal, c.table, result)
	ledger.Figure("waited", int(r.waited))
	ledger.Figure("moved", len(result.Shards[added].Entries))
	ledger.Figure("dashboards", dashboards)
	ledger.Expect("dashboards that answer", dashboards, len(c.databases))
	ledger.Figure("kills", r.kills)
	reruns := demo.AtLeastOnce(ledger, "calls", r.producer.journal, result.Calls)
	ledger.Figure("reruns", reruns)
	return ledger, runErr
}

// run is one demonstration.
type run struct {
	cluster  *Cluster
	producer *Producer
	deposits []Deposit
	sent     int
	waited   int64
	kills    int
}

// all runs the cluster from its start to its stop.
func (r *run) all(ctx context.Context, kills int) (err error) {
	c := r.cluster
	for _, shard := range c.table.Shards() {
		err = errors.Join(err, c.Start(shard))
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err != nil {
		return err
	}
	quarter := len(r.deposits) / 4
	if err := r.crashes(ctx, quarter, kills/2); err != nil {
		return err
	}
	c.env.Say("the database of %s is blocked", blocked)
	r.waited, err = c.Outage(ctx, blocked, func(ctx context.Context) error { return r.send(ctx, quarter) })
	if err != nil {
		return err
	}
	c.env.Say("all other shards have ended, %d records wait for %s; adding %s", r.waited, blocked, added)
	err = demo.Concurrently(ctx, func(ctx context.Context) error { return r.send(ctx, quarter) },
		func(ctx context.Context) error { return c.AddShard(ctx, added, moved) })
	if err != nil {
		return err
	}
	r.kills++ // AddShard has killed one owner
	return r.crashes(ctx, len(r.deposits)-r.sent, kills-kills/2)
}

// send sends the next n deposits.
func (r *run) send(ctx context.Context, n int) error {
	next := r.deposits[r.sent : r.sent+n]
	r.sent += n
	return r.producer.Send(ctx, next)
}

// crashes sends the next n deposits while processes are killed, and waits until all is booked.
func (r *run) crashes(ctx context.Context, n, kills int) error {
	c := r.cluster
	crashes := &demo.Crashes{Env: c.env, Workers: c.Workers(), Kills: kills, Window: 3 * time.Second,
		Read: func(ctx context.Context) (demo.Tally, error) {
			p, err := c.Progress(ctx, c.table.Shards()...)
			return p.Tally, err
		},
		Done: func(ctx context.Context, _ demo.Tally) (bool, error) {
			p, err := c.Progress(ctx, c.table.Shards()...)
			return p.done(), err
		}}
	next := r.deposits[r.sent : r.sent+n]
	r.sent += n
	err := demo.RunCrashes(ctx, crashes, next, r.producer.Send)
	r.kills += crashes.Killed
	return err
}
