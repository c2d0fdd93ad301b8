// Command shards shows one topic whose partitions are divided among four databases, an outage of one of them, and a
// fifth that is added while records arrive.
//
//	go run -C examples ./shards
//
// needs nothing but Go. A producer sends deposits for 200 accounts to a topic with eight partitions, some of them more
// than once. A table (cluster.go) says which shard owns each partition. A shard is a database, with the accounts beside
// their messages, and a process (this program, started again) that reads the partitions of its shard in a consumer
// group of its own. Deposits of an account are booked in their order.
//
// First, processes are killed by SIGKILL while they work. Then one database is taken away, and a process of another
// shard killed, until the other shards have booked all that is theirs; their dashboards are asked meanwhile. Then a
// fifth shard takes over two partitions from two owners, of which one is killed before that (move.go has the steps).
// Deposits arrive until it works, and then some are sent again that the owners have booked. Then processes are killed
// again.
//
// The part to copy is cluster.go (the table), service.go (the inbox), move.go (adding a shard) and web.go. When
// everything has ended, the databases are read and judged by what was sent:
//
//	expected      deposits that were sent: 6,000, and those during the move
//	effects       deposits booked in all databases
//	lost          expected ones that are booked nowhere
//	doubled       bookings beyond the first of a deposit, in any database
//	out_of_order  bookings that are not at their deposit's place among those of the account
//	waited        records that the blocked shard had not read when all others had ended
//	dashboards    other shards whose dashboard then found a deposit of theirs
//	uncommitted   records that the killed owner had stored without committing their offsets
//	arrived       deposits that were sent to the two partitions while they moved
//	relearned     deposits of each that were sent again to the fifth shard, at least
//	moved         deposits that the fifth shard has booked
//	kills         how often a process was killed
//	reruns        calls of the handler beyond the first of a deposit
//
// From "waited" to "moved" all must be above 0. Besides, each account and its bookings must be in the database of its
// partition's owner alone, with the sum of its deposits, and nothing may be left in the inboxes or unread. The exit
// status is 0 only then.
//
// The databases are SQLite files; with -postgres or -mysql each shard has a database of that server. PostgreSQL takes
// one away by refusing its connections; on the others it is locked. It runs on Linux and macOS; -h lists its flags.
package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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
	flags.IntWithin(&s.Deposits, "deposits", 6000, 200, 1_000_000, "how many deposits, besides those during the move")
	flags.IntWithin(&s.Accounts, "accounts", 200, 50, 100_000, "for how many accounts")
	flags.IntWithin(&s.Kills, "kills", 4, 0, demo.MaxKills, "how often a process is killed, besides in the outage and the move")
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
	env.Say("%d deposits for %d accounts (seed %d) through %s; %s\ndashboards: %s", s.Deposits, s.Accounts, env.Seed,
		c.broker, env, c.site)
	r := &run{cluster: c, producer: NewProducer(c, env.Random), move: new(Move),
		deposits: Deposits{Accounts: s.Accounts, Random: rand.New(rand.NewPCG(env.Seed, 2))}}
	runErr := r.all(ctx, s)
	// The result is read even if the run failed: it shows how far things went.
	result, err := c.ReadResult(ctx)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	ledger := Balance(r.producer.journal, c.table, result)
	ledger.Positive("waited", int(r.waited))
	ledger.Positive("dashboards", r.dashboards)
	ledger.Expect("dashboards of other shards", r.dashboards, len(r.others))
	ledger.Positive("uncommitted", int(r.move.Uncommitted))
	ledger.Positive("arrived", r.arrived)
	ledger.Positive("relearned", r.relearned)
	ledger.Positive("moved", result.Shards[added].Processed())
	ledger.Figure("kills", r.kills+r.move.Kills)
	reruns := demo.AtLeastOnce(ledger, "calls", r.producer.journal, result.Calls)
	ledger.Figure("reruns", reruns)
	return ledger, runErr
}

// run is one demonstration.
type run struct {
	cluster  *Cluster
	producer *Producer
	deposits Deposits

	others                         []string // all shards but the blocked one
	waited                         int64
	dashboards, arrived, relearned int
	kills                          int
	move                           *Move
}

// all runs the cluster from its start to its stop.
func (r *run) all(ctx context.Context, s Settings) (err error) {
	c := r.cluster
	for _, shard := range c.table.Shards() {
		err = errors.Join(err, c.Start(shard))
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err != nil {
		return err
	}
	quarter := s.Deposits / 4
	if err := r.crashes(ctx, quarter, s.Kills/2); err != nil {
		return err
	}
	c.env.Say("the database of %s is taken away", blocked)
	err = c.Outage(ctx, blocked, func(ctx context.Context) error { return r.outage(ctx, quarter) })
	if err != nil {
		return err
	}
	c.env.Say("all other shards have ended, %d records wait for %s; adding %s", r.waited, blocked, added)
	if err := r.add(ctx); err != nil {
		return err
	}
	return r.crashes(ctx, s.Deposits-2*quarter, s.Kills-s.Kills/2)
}

// outage sends the next n deposits, kills a process, and waits until all shards but the blocked one have ended.
func (r *run) outage(ctx context.Context, n int) (err error) {
	c := r.cluster
	r.others = slices.DeleteFunc(c.table.Shards(), func(shard string) bool { return shard == blocked })
	if err := r.producer.Send(ctx, r.deposits.Next(n)); err != nil {
		return err
	}
	if err := c.Restart(r.others[0]); err != nil {
		return err
	}
	r.kills++
	if err := c.Await(ctx, r.others...); err != nil {
		return err
	}
	r.dashboards = c.AnsweringDashboards(ctx, r.others)
	r.waited, err = c.unread(ctx, blocked)
	return err
}

// add adds a shard while deposits are sent, and then sends some again that the former owners have booked.
func (r *run) add(ctx context.Context) error {
	done := make(chan struct{})
	err := demo.Concurrently(ctx, func(ctx context.Context) error { return r.trickle(ctx, done) },
		func(ctx context.Context) (err error) {
			defer close(done)
			r.move, err = r.cluster.AddShard(ctx, added, moved)
			return err
		})
	if err != nil {
		return err
	}
	for _, sent := range r.producer.journal {
		if from, moves := r.move.From[sent.Partition]; moves && sent.Offset >= from {
			r.arrived++
		}
	}
	var again []int
	for partition, before := range r.move.From {
		n, err := r.producer.Repeat(ctx, partition, before)
		if err != nil {
			return err
		}
		again = append(again, n)
	}
	r.relearned = slices.Min(again)
	return nil
}

// trickle sends a few deposits at a time until done is closed.
func (r *run) trickle(ctx context.Context, done <-chan struct{}) error {
	for {
		if err := r.producer.Send(ctx, r.deposits.Next(5)); err != nil {
			return err
		}
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
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
	err := demo.RunCrashes(ctx, crashes, r.deposits.Next(n), r.producer.Send)
	r.kills += crashes.Killed
	return err
}
