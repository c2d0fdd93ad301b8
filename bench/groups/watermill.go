package groups

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/bench/peers/watermill"
	"github.com/gorm-inbox/inbox/bench/trial"
)

func acceptWatermill(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	n := env.Scale(100_000, 30_000)
	w, err := watermill.Open(ctx, env.DSN, watermill.Settings{})
	if err != nil {
		return nil, err
	}
	return &trial.Trial{
		Count: n,
		Run:   func(ctx context.Context) error { return w.PublishAll(ctx, n, acceptBatch, acceptConnections) },
		Check: func(ctx context.Context) error { return w.CheckPublished(ctx, n) },
		Close: w.Close,
	}, nil
}

func processWatermill(s watermill.Settings, full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		w, err := watermill.Open(ctx, env.DSN, s)
		if err != nil {
			return nil, err
		}
		for _, step := range []func() error{
			func() error { return w.PublishAll(ctx, n, acceptBatch, acceptConnections) },
			func() error { return w.Prepare(ctx) },
			func() error { return env.Analyze(ctx) },
		} {
			if err := step(); err != nil {
				w.Close()
				return nil, err
			}
		}
		handled := 0
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return w.Work(ctx, n, func([]byte) { handled++ }) },
			Check: func(ctx context.Context) error {
				if handled != n {
					return fmt.Errorf("watermill: %d messages handled, expected %d", handled, n)
				}
				return w.CheckWorked(ctx, n)
			},
			Close: w.Close,
		}, nil
	}
}
