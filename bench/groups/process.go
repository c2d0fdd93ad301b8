package groups

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/byhand"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/peers/watermill"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

// Variants that lines compare.
const (
	BatchesOf2000 = "inbox, batches of 2,000"

	defaults           = "inbox with defaults"
	mixed              = "inbox with 10 slots and calls of up to 5 ms"
	mixedDefaults      = "inbox with defaults and calls of up to 5 ms"
	minimalProcess     = "claim, call and complete, nothing else"
	minimalProcess2000 = minimalProcess + ", batches of 2,000"

	longTransaction  = "SKIP LOCKED in a long transaction, 2 workers"
	longTransaction8 = "SKIP LOCKED in a long transaction, 8 workers"

	river2000 = "River, 2,000 workers"
	river1000 = "River, 1,000 workers"
	river500  = "River, 500 workers"
	textbook  = "textbook inbox, one by one"
	textbook8 = "textbook inbox, 8 at once"
)

// inboxBench and riverBench are the variants from which the best of either side is chosen.
func inboxBench() []string { return []string{"inbox", BatchesOf2000} }
func riverBench() []string { return []string{river2000, river1000, river500} }

const processCount, processQuick = 100_000, 15_000

// processOptions returns the options for throughput that docs/benchmarks.md names.
func processOptions() []inbox.Option {
	return []inbox.Option{inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 200
		o.Processor.BatchSize = 1000
		o.Processor.Prefetch = 4000
	})}
}

// largeBatches returns the options of the second inbox variant in groups that compare with River's
// three variants.
func largeBatches() []inbox.Option {
	return []inbox.Option{inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 200
		o.Processor.BatchSize = 2000
		o.Processor.Prefetch = 8000
	})}
}

// Process measures taking pending messages to completed, with handlers that do nothing.
func Process() trial.Group {
	return trial.Group{
		Name: "process", Unit: "status",
		About: "pending messages run by handlers that do nothing, until each is completed",
		Variants: []trial.Variant{
			{Name: "inbox", New: processOurs(processCount, processQuick, processOptions()...)},
			{Name: BatchesOf2000, New: processOurs(processCount, processQuick, largeBatches()...)},
			{Name: defaults, New: processOurs(processCount, processQuick)},
			{Name: mixed, New: processMixed(processOptions()...)},
			{Name: mixedDefaults, New: processMixed()},
			{Name: river2000, New: processRiver(river.Bench(2_000), processCount, processQuick)},
			{Name: river1000, New: processRiver(river.Bench(1_000), processCount, processQuick)},
			{Name: river500, New: processRiver(river.Bench(500), processCount, processQuick)},
			{Name: "River, defaults", New: processRiver(river.Default(), 3_000, 1_000)},
			{Name: minimalProcess, New: processMinimal(1000)},
			{Name: minimalProcess2000, New: processMinimal(2000)},
			{Name: longTransaction, New: processByHand(processCount, processQuick, skipLockedBy(2))},
			{Name: longTransaction8, New: processByHand(processCount, processQuick, skipLockedBy(8))},
			// Slow variants process fewer messages. Their speed does not depend on the number.
			{Name: textbook, New: processByHand(3_000, 1_000, textbookOf(1))},
			{Name: textbook8, New: processByHand(8_000, 3_000, textbookOf(8))},
			// Each read sorts all unread messages (the SELECT in schema_adapter_postgresql.go). A
			// log is meant to be read while it is written, so it has a shorter backlog here.
			{Name: "Watermill SQL, defaults, backlog of 10,000", New: processWatermill(watermill.Settings{}, 10_000, 5_000)},
			{Name: "Watermill SQL, batches of 1,000, backlog of 30,000",
				New: processWatermill(watermill.Settings{Batch: 1_000}, 30_000, 10_000)},
			{Name: "Watermill SQL queue, batches of 1,000",
				New: processWatermill(watermill.Settings{Queue: true, Batch: 1_000}, processCount, processQuick)},
			{Name: "gue, 8 workers", New: processGue(8, 6_000, 3_000)},
			{Name: "gue, 32 workers", New: processGue(32, 6_000, 3_000)},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("process_vs_river_bench", inboxBench(), riverBench(), 3.3).Times(2),
			trial.Ratio("process_defaults_vs_tuned", defaults, "inbox", 0.7).Times(2),
			trial.Ratio("process_mixed_defaults_vs_tuned", mixedDefaults, mixed, 0.7),
			trial.RatioOfBest("process_vs_blog_loop", inboxBench(), []string{longTransaction}, 0.85).Times(2),
			trial.RatioOfBest("process_vs_minimal", inboxBench(), []string{minimalProcess, minimalProcess2000}, 0).Times(2),
			trial.Ratio("process_vs_textbook", BatchesOf2000, textbook, 30).Times(2),
			trial.Ratio("process_vs_textbook_8_at_once", BatchesOf2000, textbook8, 0),
		},
	}
}

func processOurs(full, quick int, options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(full, quick)
		t, err := processStored(ctx, env, ib, n, func(context.Context) error { return nil })
		if err != nil {
			return nil, err
		}
		stored := t.Check
		t.Check = func(ctx context.Context) error {
			bytes, err := ib.Disk(ctx)
			t.Values = map[string]float64{"disk B": bytes / float64(n)}
			return errors.Join(err, stored(ctx))
		}
		return t, nil
	}
}

// processMixed processes messages for three handlers at ten slots: one that does nothing, one that takes a
// millisecond and one that takes five.
func processMixed(options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.OpenWith(ctx, env.DSN, func(called func()) (specs []*inbox.HandlerSpec) {
			for _, takes := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
				specs = append(specs, inbox.Func("bench-"+takes.String(),
					func(ctx context.Context, _ handler.Message[[]byte]) error {
						called()
						select {
						case <-ctx.Done():
						case <-time.After(takes):
						}
						return ctx.Err()
					}))
			}
			return specs
		}, append(options, inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 10 }))...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(4_000, 1_500)
		messages := ours.Messages(n)
		if err := ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections); err != nil {
			ib.Close()
			return nil, err
		}
		t := &trial.Trial{Count: 3 * n, Run: completing(ib, 3*n), Close: ib.Close}
		t.Check = func(ctx context.Context) error { return ib.CheckStored(ctx, n, 3*n, 3*n) }
		return t, nil
	}
}

// processStored processes n messages that the inbox has accepted before. check verifies what the
// handlers leave besides their statuses.
func processStored(
	ctx context.Context, env *trial.Env, ib *ours.Inbox, n int, check func(context.Context) error,
) (*trial.Trial, error) {
	return processAccepted(ctx, env, ib, ours.Messages(n), func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		return ib.CheckStored(ctx, n, n, n)
	})
}

// processAccepted accepts messages and measures how they are processed.
func processAccepted(ctx context.Context, env *trial.Env, ib *ours.Inbox, messages []handler.RawMessage,
	check func(context.Context) error,
) (*trial.Trial, error) {
	if err := ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections); err != nil {
		ib.Close()
		return nil, err
	}
	if err := env.Analyze(ctx); err != nil {
		ib.Close()
		return nil, err
	}
	n := len(messages)
	return &trial.Trial{Count: n, Run: completing(ib, n), Check: check, Close: ib.Close}, nil
}

// completing returns the timed part of a trial with n pending statuses: from the inbox's start
// until they are completed.
func completing(ib *ours.Inbox, n int) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := ib.Start(ctx); err != nil {
			return err
		}
		return ib.Completed(ctx, n)
	}
}

func skipLockedBy(workers int) func(context.Context, *byhand.Inbox, func(string, []byte) error) error {
	return func(ctx context.Context, ib *byhand.Inbox, run func(string, []byte) error) error {
		return ib.SkipLocked(ctx, workers, 1000, run)
	}
}

// processMinimal is a plain loop, see ours.ProcessMinimal.
func processMinimal(batch int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1)
		if err != nil {
			return nil, err
		}
		n := env.Scale(processCount, processQuick)
		t, err := processStored(ctx, env, ib, n, func(context.Context) error { return nil })
		if err != nil {
			return nil, err
		}
		err = withPool(ctx, env.DSN, t, func(ctx context.Context, pool *pgxpool.Pool) error {
			return ib.ProcessMinimal(ctx, pool, batch, 2, 100)
		})
		return t, err
	}
}

// withPool makes a trial run with a pool, which it opens before and closes after.
func withPool(
	ctx context.Context, dsn string, t *trial.Trial, run func(context.Context, *pgxpool.Pool) error,
) error {
	pool, err := openPool(ctx, dsn)
	if err != nil {
		t.Close()
		return err
	}
	closeOthers := t.Close
	t.Close = func() { pool.Close(); closeOthers() }
	t.Run = func(ctx context.Context) error { return run(ctx, pool) }
	return nil
}

// openPool opens a pool and all of its connections.
func openPool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	const connections = 6
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var open []*pgxpool.Conn
	for range connections {
		c, acquireErr := pool.Acquire(ctx)
		if err = acquireErr; err != nil {
			break
		}
		open = append(open, c)
	}
	for _, c := range open {
		c.Release()
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func textbookOf(atOnce int) func(context.Context, *byhand.Inbox, func(string, []byte) error) error {
	return func(ctx context.Context, ib *byhand.Inbox, run func(string, []byte) error) error {
		return ib.Textbook(ctx, 100, atOnce, run)
	}
}
