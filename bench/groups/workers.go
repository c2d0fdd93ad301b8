package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/bench/workers"
)

// Workers measures several processes on one inbox.
func Workers() trial.Group {
	g := trial.Group{
		Name: "workers", Unit: "status",
		About: "pending messages processed by worker processes that share one inbox (Competing mode); workers_us " +
			"is the CPU of all of them per status",
	}
	name := func(n int) string { return fmt.Sprintf("worker processes: %d", n) }
	for _, n := range []int{1, 2, 4} {
		g.Variants = append(g.Variants, trial.Variant{Name: name(n), New: byWorkers(n)})
	}
	g.Lines = []trial.Line{
		trial.ServerRatio("workers_4_vs_1_server_us", name(4), name(1), 1.20).Times(2),
		trial.Ratio("workers_4_vs_1_rate", name(4), name(1), 0.95).Times(2),
	}
	return g
}

// Worker is the main function of a worker process.
func Worker(ctx context.Context, dsn string, in io.Reader, out io.Writer) error {
	return workers.Serve(ctx, dsn, in, out, processOptions()...)
}

func byWorkers(processes int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		// Each process costs the server some 25 ms for its connections, which must not count.
		n := env.Scale(240_000, 30_000)
		ib, err := ours.Open(ctx, env.DSN, 1)
		if err != nil {
			return nil, err
		}
		if err := ib.AcceptAll(ctx, ours.Messages(n), acceptBatch, acceptConnections); err != nil {
			ib.Close()
			return nil, err
		}
		f := fleet{}
		for range processes {
			p, err := workers.Start(ctx, env.DSN)
			if err != nil {
				_, _, ended := f.end()
				ib.Close()
				return nil, errors.Join(err, ended)
			}
			f = append(f, p)
		}
		t := &trial.Trial{Count: n, Values: map[string]float64{}, Close: func() { _, _, _ = f.end(); ib.Close() }}
		t.Run = func(ctx context.Context) error { return f.process(ctx, int64(n)) }
		t.Check = func(ctx context.Context) error {
			handled, cpu, err := f.end()
			if err != nil {
				return err
			}
			ib.Handled.Store(handled)
			t.Values["workers_us"] = float64(cpu.Microseconds()) / float64(n)
			return ib.CheckStored(ctx, n, n, n)
		}
		return t, nil
	}
}

// fleet is all worker processes of a trial.
type fleet []*workers.Process

// process starts all workers and waits until together they have completed n statuses.
func (f fleet) process(ctx context.Context, n int64) error {
	for _, p := range f {
		if err := p.Begin(); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		var sum int64
		for _, p := range f {
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

// end stops all workers and sums up their results. It may be called twice.
func (f fleet) end() (handled int64, cpu time.Duration, err error) {
	for _, p := range f {
		h, c, e := p.End()
		handled, cpu, err = handled+h, cpu+c, errors.Join(err, e)
	}
	return handled, cpu, err
}
