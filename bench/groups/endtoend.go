package groups

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const endToEndCount, endToEndQuick = 60_000, 12_000

// EndToEnd measures accepting and completing at the same time in one process.
func EndToEnd() trial.Group {
	return trial.Group{
		Name: "endtoend", Unit: "message",
		About: "messages accepted as in `accept`, and meanwhile run in the same process by a handler that does " +
			"nothing",
		Variants: []trial.Variant{
			{Name: "inbox", New: endToEndOurs(processOptions())},
			{Name: BatchesOf2000, New: endToEndOurs(largeBatches())},
			{Name: withoutForeignKey, New: endToEndOurs(largeBatches(), dropForeignKey)},
			{Name: minimalEndToEnd, New: endToEndMinimal},
			{Name: river2000, New: endToEndRiver(river.Bench(2_000))},
			{Name: river1000, New: endToEndRiver(river.Bench(1_000))},
			{Name: river500, New: endToEndRiver(river.Bench(500))},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("e2e_vs_river", inboxBench(), riverBench(), 2.3).Times(2),
			trial.RatioOfBest("e2e_without_foreign_key_vs_river", []string{withoutForeignKey}, riverBench(), 0).Times(2),
			trial.RatioOfBest("e2e_vs_minimal", inboxBench(), []string{minimalEndToEnd}, 0).Times(2),
			trial.RatioOfBest("e2e_minimal_vs_river", []string{minimalEndToEnd}, riverBench(), 0).Times(2),
		},
	}
}

const (
	withoutForeignKey = BatchesOf2000 + ", without the foreign key"
	minimalEndToEnd   = "insert, call and complete, nothing else"

	// dropForeignKey shows what it costs that PostgreSQL checks the message of each status.
	dropForeignKey = `ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`
)

func endToEndMinimal(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	n := env.Scale(endToEndCount, endToEndQuick)
	ib, err := ours.Open(ctx, env.DSN, 1)
	if err != nil {
		return nil, err
	}
	loads, err := ib.NewLoads(ctx, ours.Messages(n), 1)
	if err != nil {
		ib.Close()
		return nil, err
	}
	t := &trial.Trial{
		Count: n,
		Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, n) },
		Close: ib.Close,
	}
	err = withPool(ctx, env.DSN, t, func(ctx context.Context, pool *pgxpool.Pool) error {
		return loads.EndToEndMinimal(ctx, ib, pool, acceptBatch, acceptConnections, 100)
	})
	return t, err
}

func endToEndOurs(options []inbox.Option, changes ...string) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(endToEndCount, endToEndQuick)
		messages := ours.Messages(n)
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		for _, change := range changes {
			if err := ib.DB.WithContext(ctx).Exec(change).Error; err != nil {
				ib.Close()
				return nil, err
			}
		}
		values := map[string]float64{}
		return &trial.Trial{
			Count:  n,
			Values: values,
			Run: func(ctx context.Context) error {
				if err := ib.Start(ctx); err != nil {
					return err
				}
				if err := ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections); err != nil {
					return err
				}
				defer func() { values["% dispatched"] = float64(100*ib.Counters().Dispatched) / float64(n) }()
				return ib.Completed(ctx, n)
			},
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, n) },
			Close: ib.Close,
		}, nil
	}
}
