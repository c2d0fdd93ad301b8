package groups

import (
	"context"

	"github.com/gorm-inbox/inbox/bench/effects"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// newTrial is the type of a variant's New.
type newTrial = func(context.Context, *trial.Env) (*trial.Trial, error)

// acceptRiver inserts jobs, one for each handler of a message, without working them.
func acceptRiver(insert river.Insert, handlers int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(acceptCount, acceptQuick)
		r, err := river.Open(ctx, env.DSN, river.Bench(500))
		if err != nil {
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return r.InsertAll(ctx, insert, n*handlers, acceptBatch, acceptConnections)
			},
			Check: func(ctx context.Context) error { return r.CheckStored(ctx, n*handlers, 0) },
			Close: r.Close,
		}, nil
	}
}

// processRiver works jobs that are already stored.
func processRiver(s river.Settings, full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		if s.Transactional {
			if err := effects.Create(ctx, env.DSN); err != nil {
				return nil, err
			}
		}
		r, err := river.Open(ctx, env.DSN, s)
		if err != nil {
			return nil, err
		}
		if err := r.InsertAll(ctx, river.InsertManyFast, n, acceptBatch, acceptConnections); err != nil {
			r.Close()
			return nil, err
		}
		if err := env.Analyze(ctx); err != nil {
			r.Close()
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				if err := r.Start(ctx, n); err != nil {
					return err
				}
				return r.Completed(ctx, n)
			},
			Check: func(ctx context.Context) error {
				if s.Transactional {
					if err := effects.Check(ctx, env.DSN, n); err != nil {
						return err
					}
				}
				return r.CheckStored(ctx, n, n)
			},
			Close: r.Close,
		}, nil
	}
}

// endToEndRiver inserts jobs while they are worked.
func endToEndRiver(s river.Settings) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(endToEndCount, endToEndQuick)
		s.Connections = 8 // so that inserts do not wait for workers' connections
		r, err := river.Open(ctx, env.DSN, s)
		if err != nil {
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				if err := r.Start(ctx, n); err != nil {
					return err
				}
				if err := r.InsertAll(ctx, river.InsertManyFast, n, acceptBatch, acceptConnections); err != nil {
					return err
				}
				return r.Completed(ctx, n)
			},
			Check: func(ctx context.Context) error { return r.CheckStored(ctx, n, n) },
			Close: r.Close,
		}, nil
	}
}
