// Command quickstart shows an inbox at work, and proves it by a ledger.
//
//	go run -C examples ./quickstart
//
// needs nothing but Go. It produces 5,000 order events (CloudEvents as JSON) through an in-process
// Kafka, consumes them with an ordinary Fx application (service.go, handlers.go: the part to copy)
// whose inbox is a SQLite file, and compares what the producer knows to have sent with what is in the
// database. A tenth of the records are duplicates, some are malformed, some orders fail once, some always.
//
// The application is a process of its own: this program, started again. With -crash N it is killed by
// SIGKILL N times at random moments: while it starts, joins its group, accepts or processes. In the end
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
// All figures but kills come from the database, from the broker (what was produced, what was read) and,
// for reruns, from the file that stands for the mail server: a plain handler's effects are outside the
// database, so they happen at least once. The exit status is 0 only if everything balances.
//
// With -postgres or -mysql the inbox is in a database of that server. It runs on Linux and macOS; -h lists its flags.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

var command = demo.Command[Settings]{Name: "quickstart", Seeded: true, Flags: declare, Demonstrate: Demonstrate}

func main() {
	if !demo.IsWorker() {
		command.Main()
	}
	demo.Work(func(ctx context.Context, cfg Config) error { return demo.Run(ctx, Service(cfg)) })
}

// Settings are the flags.
type Settings struct {
	Records, Kills int
	Kafka          string
}

func declare(flags *demo.Flags, s *Settings) {
	flags.IntWithin(&s.Records, "n", 5000, 1, 1_000_000, "records to produce")
	flags.IntWithin(&s.Kills, "crash", 0, 0, demo.MaxKills, "how often to kill the service")
	flags.StringVar(&s.Kafka, "kafka", "", "`brokers` (host:port,…) instead of an in-process one: a topic of its own")
}

// Demonstrate produces events, has the service consume them, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (*demo.Ledger, error) {
	database, err := env.Database(ctx, "orders")
	if err != nil {
		return nil, err
	}
	topic, group, mails := "orders.events."+env.Run, "fulfilment."+env.Run, env.File("mails.log")
	broker, err := env.Broker(ctx, s.Kafka, map[string]string{topic: group})
	if err != nil {
		return nil, err
	}
	workers, err := env.Workers(1, func(string) any {
		return Config{Database: database.DSN, Brokers: broker.Addresses, Topic: topic, Group: group, Outgoing: mails,
			Session: broker.Session}
	})
	if err != nil {
		return nil, err
	}
	env.Say("%d records (seed %d) through %s; %s", s.Records, env.Seed, broker, env)
	journal := Journal{Orders: map[string]*OrderPlaced{}}
	crashes := &demo.Crashes{Env: env, Workers: workers, Kills: s.Kills, Window: broker.Session * 3 / 2,
		Read: func(ctx context.Context) (demo.Tally, error) { return demo.ReadTally(ctx, database.DB) },
		Done: func(ctx context.Context, t demo.Tally) (bool, error) {
			if t.Settled() < int64(len(journal.Orders)*len(handlerKeys)) {
				return false, nil
			}
			unread, err := broker.Unread(ctx, topic)
			return unread == 0, err
		}}
	took, runErr := workers.During(ctx, func(ctx context.Context) error {
		return demo.RunCrashes(ctx, crashes, MakeEvents(s.Records, env.Random),
			func(ctx context.Context, events []Event) error {
				return journal.Produce(ctx, broker.Client, topic, events)
			})
	})
	// The result is read even if the run failed: it shows how far things went.
	result, err := ReadResult(ctx, database.DB, mails)
	if err == nil {
		result.Unread, err = broker.Unread(ctx, topic)
	}
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	ledger := Balance(journal, result, crashes.Killed)
	ledger.Figure("seconds", fmt.Sprintf("%.1f", took.Seconds()))
	return ledger, runErr
}
