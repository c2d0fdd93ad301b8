package groups

import (
	"context"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	river2000 = "River, its bench settings, 2,000 workers"
	river500  = "River, its bench settings, 500 workers"
)

const processCount, processQuick = 100_000, 30_000

// processOptions are those for throughput: what docs/benchmarks.md names.
func processOptions() []inbox.Option {
	return []inbox.Option{inbox.Concurrency(200), inbox.BatchSize(1000), inbox.Prefetch(1000)}
}

// Process: pending messages to completed, handlers that do nothing.
func Process() trial.Group {
	return trial.Group{
		Name: "process", Unit: "status",
		About: "pending messages of 1 KB run by handlers that do nothing, until each is completed",
		Variants: []trial.Variant{
			{Name: "inbox", New: processOurs(processOptions()...)},
			{Name: "inbox, defaults", New: processOurs()},
			{Name: river2000, New: processRiver(river.Bench(2_000), processCount, processQuick)},
			{Name: river500, New: processRiver(river.Bench(500), processCount, processQuick)},
			{Name: "River, defaults", New: processRiver(river.Default(), 3_000, 1_000)},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("process_vs_river_bench", []string{"inbox"}, []string{river2000, river500}, 2.5),
		},
	}
}

func processOurs(options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(processCount, processQuick)
		return processStored(ctx, ib, n, func(context.Context) error { return nil })
	}
}

// processStored runs an inbox on n messages that it has accepted before. Check
// is for what the handlers leave beside their statuses.
func processStored(ctx context.Context, ib *ours.Inbox, n int, check func(context.Context) error) (*trial.Trial, error) {
	if err := ib.AcceptAll(ctx, ours.Messages(n), acceptBatch, acceptConnections); err != nil {
		ib.Close()
		return nil, err
	}
	return &trial.Trial{
		Count: n,
		Run: func(ctx context.Context) error {
			if err := ib.Start(ctx); err != nil {
				return err
			}
			return ib.Completed(ctx, n)
		},
		Check: func(ctx context.Context) error {
			if err := check(ctx); err != nil {
				return err
			}
			return ib.CheckStored(ctx, n, n, n)
		},
		Close: ib.Close,
	}, nil
}
