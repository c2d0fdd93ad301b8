package groups

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/effects"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

// Transactional measures handlers that write a row in the transaction that completes their status.
func Transactional() trial.Group {
	tx := func(concurrency int) string { return fmt.Sprintf("inbox Tx, %d at once", concurrency) }
	group := func(concurrency int) string { return fmt.Sprintf("inbox TxGroup(10), %d at once", concurrency) }
	riverTx := func(workers int) string { return fmt.Sprintf("River JobCompleteTx, %d workers", workers) }
	const rowsAlone = "the rows alone, ten in a transaction, 8 at once"
	const rowsBehind = "the rows alone, each behind a savepoint"
	minimal := func(connections int) string {
		return fmt.Sprintf("claim, insert behind savepoints and complete, nothing else, %d at once", connections)
	}
	groups, riverBoth := []string{group(8), group(32)}, []string{riverTx(8), riverTx(32)}
	minimalBoth := []string{minimal(8), minimal(32)}
	return trial.Group{
		Name: "transactional", Unit: "status",
		About: "pending messages run by handlers that insert one row in the transaction that completes them",
		Variants: []trial.Variant{
			{Name: tx(8), New: transactionalOurs(8, 12_000, 2_500)},
			{Name: tx(32), New: transactionalOurs(32, 12_000, 2_500)},
			{Name: group(8), New: transactionalOurs(8, 30_000, 5_000, handler.TxGroup(10))},
			{Name: group(32), New: transactionalOurs(32, 30_000, 5_000, handler.TxGroup(10))},
			{Name: riverTx(8), New: processRiver(river.Tx(8), 4_000, 1_000)},
			{Name: riverTx(32), New: processRiver(river.Tx(32), 4_000, 1_000)},
			{Name: "GORM one by one, 8 at once", New: transactionalByHand(8, 6_000, 1_000)},
			{Name: rowsAlone, New: insertAlone(8, 10, 30_000, 5_000, false)},
			{Name: rowsBehind, New: insertAlone(8, 10, 30_000, 5_000, true)},
			{Name: minimal(8), New: transactionalMinimal(8)},
			{Name: minimal(32), New: transactionalMinimal(32)},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("tx_vs_river_tx", []string{tx(8), tx(32)}, riverBoth, 2.5),
			trial.RatioOfBest("txgroup_vs_river_tx", groups, riverBoth, 6),
			trial.RatioOfBest("txgroup_vs_minimal", groups, minimalBoth, 0),
			trial.RatioOfBest("txgroup_minimal_vs_river_tx", minimalBoth, riverBoth, 0),
		},
	}
}

// transactionalMinimal is a plain loop, see ours.GroupsMinimal.
func transactionalMinimal(connections int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(30_000, 5_000)
		if err := effects.Create(ctx, env.DSN); err != nil {
			return nil, err
		}
		ib, err := ours.Open(ctx, env.DSN, 1)
		if err != nil {
			return nil, err
		}
		t, err := processStored(ctx, env, ib, n, func(ctx context.Context) error { return effects.Check(ctx, env.DSN, n) })
		if err != nil {
			return nil, err
		}
		err = withPool(ctx, env.DSN, t, func(ctx context.Context, pool *pgxpool.Pool) error {
			return ib.GroupsMinimal(ctx, pool, 1000, 10, connections,
				func(ctx context.Context, ids []string, complete func(context.Context, gorm.ConnPool) error) error {
					return insertTogether(ctx, ib.DB, ids, true, complete)
				})
		})
		return t, err
	}
}

func transactionalOurs(concurrency, full, quick int, how ...handler.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		if err := effects.Create(ctx, env.DSN); err != nil {
			return nil, err
		}
		writes := func(called func()) []*inbox.HandlerSpec {
			return []*inbox.HandlerSpec{inbox.Tx("bench-handler-1",
				func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
					called()
					return tx.Exec(effects.Insert, m.ID).Error
				}, how...)}
		}
		ib, err := ours.OpenWith(ctx, env.DSN, writes, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = concurrency
			o.Processor.BatchSize = 1000
			o.Processor.Prefetch = 1000
		}))
		if err != nil {
			return nil, err
		}
		return processStored(ctx, env, ib, n, func(ctx context.Context) error { return effects.Check(ctx, env.DSN, n) })
	}
}
