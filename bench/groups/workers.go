package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/bench/workers"
)

// Workers measures several processes on one inbox, and on an inbox each.
func Workers() trial.Group {
	g := trial.Group{
		Name: "workers", Unit: "status",
		About: "pending messages processed by worker processes that share one inbox (Competing mode), or have an inbox and " +
			"a database each; workers_us is the CPU of all of them per status",
	}
	name := func(n int) string { return fmt.Sprintf("worker processes: %d", n) }
	for _, n := range []int{1, 2, 4} {
		g.Variants = append(g.Variants, trial.Variant{Name: name(n), New: byWorkers(1, n)})
	}
	const apart = "worker processes: 4, with a database each"
	g.Variants = append(g.Variants, trial.Variant{Name: apart, New: byWorkers(4, 1)})
	g.Lines = []trial.Line{
		// Four processes on two cores cost more than one, even in databases of their own.
		trial.ServerRatio("workers_4_vs_1_server_us", name(4), name(1), 1.40).Times(2),
		trial.Ratio("workers_4_vs_1_rate", name(4), name(1), 0.80).Times(2),
		trial.ServerRatio("workers_4_vs_4_apart_server_us", name(4), apart, 1.20).Times(2),
		trial.Ratio("workers_4_vs_4_apart_rate", name(4), apart, 0.85).Times(2),
	}
	return g
}

// Worker is the main function of a worker process.
func Worker(ctx context.Context, dsn string, in io.Reader, out io.Writer) error {
	return workers.Serve(ctx, dsn, in, out, processOptions()...)
}

// byWorkers divides the messages among inboxes with a database and worker processes each. Processes of
// different inboxes share only the server.
func byWorkers(databases, processes int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		// Each process costs the server some 25 ms for its connections, which must not count.
		share := env.Scale(240_000, 30_000) / databases
		n := share * databases
		var all fleets
		for i := range databases {
			f := &fleet{}
			all = append(all, f)
			if err := f.start(ctx, env, i == 0, share, processes); err != nil {
				all.close()
				return nil, err
			}
		}
		t := &trial.Trial{Count: n, Values: map[string]float64{}, Close: all.close}
		t.Run = func(ctx context.Context) error { return all.process(ctx, int64(n)) }
		t.Check = func(ctx context.Context) error {
			cpu, err := all.end() // before anything is checked, so that none of them goes on polling
			if err != nil {
				return err
			}
			t.Values["workers_us"] = float64(cpu.Microseconds()) / float64(n)
			for _, f := range all {
				if err := f.inbox.CheckStored(ctx, share, share, share); err != nil {
					return err
				}
			}
			return nil
		}
		return t, nil
	}
}

// fleet is an inbox with a database and all its worker processes.
type fleet struct {
	database  *server.Database // nil for the trial's own
	inbox     *ours.Inbox
	processes []*workers.Process
}

// start accepts messages, in the trial's own database or in a new one, and starts processes that are
// ready to process them.
func (f *fleet) start(ctx context.Context, env *trial.Env, own bool, messages, processes int) error {
	dsn := env.DSN
	if !own {
		database, err := env.Server.NewDatabase(ctx)
		if err != nil {
			return err
		}
		f.database, dsn = database, database.DSN
	}
	ib, err := ours.Open(ctx, dsn, 1)
	if err != nil {
		return err
	}
	f.inbox = ib
	if err := f.inbox.AcceptAll(ctx, ours.Messages(messages), acceptBatch, acceptConnections); err != nil {
		return err
	}
	for range processes {
		p, err := workers.Start(ctx, dsn)
		if err != nil {
			return err
		}
		f.processes = append(f.processes, p)
	}
	return nil
}

type fleets []*fleet

// process starts all processes and waits until together they have completed n statuses.
func (all fleets) process(ctx context.Context, n int64) error {
	var processes []*workers.Process
	for _, f := range all {
		processes = append(processes, f.processes...)
	}
	for _, p := range processes {
		if err := p.Begin(); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		var sum int64
		for _, p := range processes {
			completed, err := p.Completed()
			if err != nil {
				return err
			}
			sum += completed
		}
		if sum >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d completed: %w", sum, n, ctx.Err())
		case <-ticker.C:
		}
	}
}

// end stops all processes and returns the CPU time that they took. It may be called twice.
func (all fleets) end() (cpu time.Duration, err error) {
	for _, f := range all {
		var handled int64
		for _, p := range f.processes {
			h, c, e := p.End()
			handled, cpu, err = handled+h, cpu+c, errors.Join(err, e)
		}
		if f.inbox != nil {
			f.inbox.Handled.Store(handled)
		}
	}
	return cpu, err
}

func (all fleets) close() {
	_, _ = all.end()
	for _, f := range all {
		if f.inbox != nil {
			f.inbox.Close()
		}
		if f.database != nil {
			_ = f.database.Drop()
		}
	}
}
