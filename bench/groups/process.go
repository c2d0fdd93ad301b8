package groups

import (
	"context"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

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
		},
	}
}

func processOurs(options ...inbox.Option) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(100_000, 30_000)
		if err := ib.AcceptAll(ctx, ours.Messages(n), acceptBatch, acceptConnections); err != nil {
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
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, n) },
			Close: ib.Close,
		}, nil
	}
}
