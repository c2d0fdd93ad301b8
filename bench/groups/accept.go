// Package groups defines what is measured, with one file for each group.
package groups

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	acceptBatch       = 500
	acceptConnections = 2

	acceptCount, acceptQuick = 50_000, 20_000

	gormEach    = "GORM one by one, 8 connections"
	gormBatches = "GORM CreateInBatches"
)

const (
	copyBoth         = "COPY into the same two tables"
	singlesNotifying = "inbox one by one from 32 connections"
	singlesSilent    = "the same without Listen"
)

// Accept measures storing messages with one pending status each.
func Accept() trial.Group {
	return trial.Group{
		Name: "accept", Unit: "message",
		About: "messages stored with one pending status each, in batches of 500 on two connections",
		Variants: acceptVariants(1,
			trial.Variant{Name: singlesNotifying, New: acceptSingles(true)},
			trial.Variant{Name: singlesSilent, New: acceptSingles(false)},
			trial.Variant{Name: "River InsertManyFast", New: acceptRiver(river.InsertManyFast, 1)},
			trial.Variant{Name: "River InsertMany", New: acceptRiver(river.InsertMany, 1)},
			trial.Variant{Name: "Watermill SQL Publish", New: acceptWatermill},
			trial.Variant{Name: "gue EnqueueBatch", New: acceptGue},
		),
		Lines: []trial.Line{
			trial.Ratio("accept_vs_copy", "inbox", copyBoth, 0.75).Times(3),
			trial.Ratio("accept_one_by_one_listen_vs_not", singlesNotifying, singlesSilent, 0.9).Times(2),
		},
	}
}

// Accept3 is like Accept with three handlers for each message.
func Accept3() trial.Group {
	return trial.Group{
		Name: "accept3", Unit: "message",
		About: "the same with three statuses each; River needs three jobs",
		Variants: acceptVariants(3,
			trial.Variant{Name: "River InsertManyFast", New: acceptRiver(river.InsertManyFast, 3)},
		),
	}
}

// acceptVariants returns the variants with this number of handlers, followed by others.
func acceptVariants(handlers int, others ...trial.Variant) []trial.Variant {
	return append([]trial.Variant{
		{Name: "inbox", New: acceptOurs(handlers)},
		{Name: copyBoth, New: acceptCopy(handlers)},
		{Name: gormEach, New: acceptByHand(handlers, 8_000, 2_000, 8, gormOneByOne)},
		{Name: gormBatches, New: acceptByHand(handlers, acceptCount, acceptQuick, acceptConnections, gormInBatches)},
	}, others...)
}

// acceptSingles accepts one message in each call.
func acceptSingles(listen bool) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, inbox.Configure(func(o *inbox.Options) { o.Processor.Listen = listen }))
		if err != nil {
			return nil, err
		}
		return accepting(ib, env.Scale(20_000, 8_000), 1, 1, 32), nil
	}
}

func acceptOurs(handlers int) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, handlers)
		if err != nil {
			return nil, err
		}
		return accepting(ib, env.Scale(acceptCount, acceptQuick), handlers, acceptBatch, acceptConnections), nil
	}
}

// accepting accepts n messages, each of which gets a status for each handler.
func accepting(ib *ours.Inbox, n, handlers, batch, connections int) *trial.Trial {
	messages := ours.Messages(n)
	return &trial.Trial{
		Count: n,
		Run:   func(ctx context.Context) error { return ib.AcceptAll(ctx, messages, batch, connections) },
		Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n*handlers, 0) },
		Close: ib.Close,
	}
}

func acceptCopy(handlers int) func(context.Context, *trial.Env) (*trial.Trial, error) {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, handlers)
		if err != nil {
			return nil, err
		}
		n := env.Scale(acceptCount, acceptQuick)
		loads, err := ib.NewLoads(ctx, ours.Messages(n), handlers)
		if err != nil {
			return nil, err
		}
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
