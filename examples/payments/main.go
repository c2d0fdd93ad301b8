// Command payments shows a handler that is wrapped to handle each message once, under a transport that
// owns its retries: no Kafka, no inbox and no processor.
//
//	go run -C examples ./payments
//
// needs nothing but Go. A queue in this program posts 1,000 payments, each one to five times, some of them
// at the same moment, to three workers, each a process of its own (this program, started again) with four
// requests at once; what a worker does not acknowledge comes again. Eight times a worker kills itself by
// SIGKILL: before the handler, between the handler's two writes, after the handler before its marker is
// stored, and after that before the acknowledgement. It is started again.
//
// The part to copy is payments.go: the handler, and three lines around it. When everything has ended, the
// database is read and judged by what was sent:
//
//	payments     that were sent
//	applied      payments that have an entry in the database
//	lost         payments that have none
//	doubled      entries beyond the first of a payment
//	duplicates   deliveries beyond the first of a payment, redeliveries included
//	kills        how often a worker killed itself
//	calls_again  calls of the handler beyond the first of a payment: its worker was killed in it
//
// Besides, each account must have what its entries say, and the store must remember each payment. The exit
// status is 0 only then. All figures but duplicates and kills are read back from the database or, for
// calls_again, from a file in which the handler notes each call.
//
// By default the markers of processed payments are in the database of the accounts, in the transaction that
// writes both: exactly once. With -redis they are in Redis. Then a worker that is killed between the two
// leaves effects without a marker:
//
//	reruns  entries beyond the first, of payments whose worker was killed meanwhile
//
// It runs on Linux and macOS; -h lists its flags.
package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

var command = demo.Command[Settings]{Name: "payments", Seeded: true, Flags: declare, Check: check,
	Demonstrate: Demonstrate}

func main() {
	if !demo.IsWorker() {
		command.Main()
	}
	demo.Work(RunWorker)
}

// Settings are the flags.
type Settings struct {
	Messages, Workers, Kills int
	Redis                    string // a URL
}

func declare(flags *demo.Flags, s *Settings) {
	flags.IntWithin(&s.Messages, "messages", 1000, 1, 100_000, "payments")
	flags.IntWithin(&s.Workers, "workers", 3, 1, 20, "processes that handle them")
	flags.IntVar(&s.Kills, "crash", 8, "how often one of them kills itself")
	flags.StringVar(&s.Redis, "redis", "", "`address` of a Redis for the markers, host:port or a URL: a prefix of its own")
}

func check(s *Settings) error {
	if s.Redis != "" && !strings.Contains(s.Redis, "://") {
		s.Redis = "redis://" + s.Redis
	}
	return demo.Within("-crash", s.Kills, 0, min(demo.MaxKills, s.Messages/4))
}

// Demonstrate delivers payments to workers that kill themselves, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (*demo.Ledger, error) {
	database, err := env.Database(ctx, "accounts")
	if err != nil {
		return nil, err
	}
	if err := CreateTables(ctx, database.DB); err != nil {
		return nil, err
	}
	prefix, calls := env.Name+"_"+env.Run, env.File("calls.log")
	markers, err := new(Handler).OpenMarkers(database.DB, s.Redis, prefix)
	if err != nil {
		return nil, err
	}
	env.Cleanup(func(ctx context.Context, keep bool) error { return markers.Remove(ctx, s.Redis, prefix, keep) })
	workers, err := env.Workers(s.Workers, func(string) any {
		return Config{Database: database.DSN, Calls: calls, Redis: s.Redis, Prefix: prefix}
	})
	if err != nil {
		return nil, err
	}
	payments := MakePayments(s.Messages, env.Random)
	transport := NewTransport(MakeDeliveries(payments, s.Kills, env.Random))
	where := "the database"
	if s.Redis != "" {
		where = "Redis under " + prefix + ":*"
	}
	env.Say("%d payments in %d deliveries (seed %d), %d workers with %d requests at once each; markers in %s; %s",
		len(payments), transport.Deliveries, env.Seed, s.Workers, requests, where, env)
	took, runErr := deliver(ctx, env, transport, workers)
	// The result is read even if the run failed: it shows how far things went.
	result, err := ReadResult(ctx, database.DB, markers, payments, calls)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	seen := transport.seen // no delivery is under way any more
	env.Say("%.1f seconds; %d of %d deliveries were refused and came again", took.Seconds(), seen.Refused, seen.Sent)
	if s.Redis != "" {
		env.Say("Redis is effectively once: the effects and the marker are in two places. A payment counts under " +
			"reruns, not doubled,\nwhere its worker was killed, or lost its claim, while its effects may have been " +
			"committed and its marker was not.")
	}
	return Balance(payments, result, seen, s.Redis != ""), runErr
}

// deliver runs the workers, starting those again that kill themselves, until all deliveries are acknowledged.
func deliver(
	ctx context.Context, env *demo.Environment, transport *Transport, workers demo.Workers,
) (took time.Duration, err error) {
	addresses := make([]string, len(workers))
	for i, w := range workers {
		if addresses[i], err = listen(env, w); err != nil {
			return 0, err
		}
	}
	return workers.During(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		var delivering sync.WaitGroup
		defer delivering.Wait()
		defer cancel()
		for _, address := range addresses {
			for range requests {
				delivering.Go(func() { transport.Deliver(ctx, address) })
			}
		}
		read := func(context.Context) (Progress, error) { return transport.Progress(), nil }
		return demo.Watch(ctx, read, func(p Progress) (bool, error) {
			env.Show("acknowledged %d of %d", p.Acknowledged, transport.Deliveries)
			err := workers.RestartKilled(func(w *demo.Process) {
				killed := transport.Restarted()
				env.Say("%s killed itself (%d): %s", w.Name, len(killed), killed[len(killed)-1])
			})
			// Others may handle what a killed worker had before it has exited. To stop it meanwhile would fail.
			return p.Acknowledged == transport.Deliveries && p.Killing == "", err
		})
	})
}

// listen has the worker inherit a listener, and returns its address. The parent keeps it open, so that
// requests wait while the worker is started again.
func listen(env *demo.Environment, w *demo.Process) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return "", errors.Join(err, listener.Close())
	}
	env.Cleanup(func(context.Context, bool) error { return file.Close() })
	w.Files = []*os.File{file}
	return "http://" + listener.Addr().String(), listener.Close()
}
