// Package groups says what is measured: one file a group.
package groups

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	acceptBatch       = 500
	acceptConnections = 2
)

// Accept: persisting messages with one pending status each.
func Accept() trial.Group {
	return trial.Group{
		Name: "accept", Unit: "message",
		About: "1 KB messages persisted with one pending status each, in batches of 500 on two connections",
		Variants: []trial.Variant{
			{Name: "inbox", New: acceptOurs(1)},
			{Name: "COPY into the same two tables", New: acceptCopy(1)},
		},
		Lines: []trial.Line{trial.Ratio("accept_vs_copy", "inbox", "COPY into the same two tables", 0.75)},
	}
}

func acceptOurs(handlers int) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, handlers)
		if err != nil {
			return nil, err
		}
		n := env.Scale(50_000, 20_000)
		messages := ours.Messages(n)
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections)
			},
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n*handlers, 0) },
			Close: ib.Close,
		}, nil
	}
}

func acceptCopy(handlers int) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, handlers)
		if err != nil {
			return nil, err
		}
		n := env.Scale(50_000, 20_000)
		loads := ours.NewLoads(ours.Messages(n), handlers)
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return loads.Copy(ctx, env.DSN, acceptBatch, acceptConnections) },
			Check: func(ctx context.Context) error {
				if err := ib.CheckStored(ctx, n, n*handlers, 0); err != nil {
					return fmt.Errorf("by COPY: %w", err)
				}
				return nil
			},
			Close: ib.Close,
		}, nil
	}
}
