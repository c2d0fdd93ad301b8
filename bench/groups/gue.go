package groups

import (
	"context"

	"github.com/gorm-inbox/inbox/bench/peers/gue"
	"github.com/gorm-inbox/inbox/bench/trial"
)

func acceptGue(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	n := env.Scale(30_000, 5_000)
	g, err := gue.Open(ctx, env.DSN, 1)
	if err != nil {
		return nil, err
	}
	return &trial.Trial{
		Count: n,
		Run:   func(ctx context.Context) error { return g.EnqueueAll(ctx, n, acceptBatch, acceptConnections) },
		Check: func(ctx context.Context) error { return g.Check(ctx, n, 0) },
		Close: g.Close,
	}, nil
}

func processGue(workers, full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		g, err := gue.Open(ctx, env.DSN, workers)
		if err != nil {
			return nil, err
		}
		if err := g.EnqueueAll(ctx, n, acceptBatch, acceptConnections); err != nil {
			g.Close()
			return nil, err
		}
		if err := env.Analyze(ctx); err != nil {
			g.Close()
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return g.Work(ctx, n) },
			Check: func(ctx context.Context) error { return g.Check(ctx, 0, n) },
			Close: g.Close,
		}, nil
	}
}
