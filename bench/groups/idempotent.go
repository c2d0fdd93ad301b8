package groups

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/bench/effects"
	"github.com/gorm-inbox/inbox/bench/peers/byhand"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/models"
)

// Idempotent compares the inline receiver with what people usually write.
func Idempotent() trial.Group {
	ours := func(atOnce int) string { return fmt.Sprintf("gormstore.Wrap, %d at once", atOnce) }
	naive := func(atOnce int) string { return fmt.Sprintf("check, run, mark in a transaction, %d at once", atOnce) }
	loose := func(atOnce int) string { return fmt.Sprintf("check, run, mark without one, %d at once", atOnce) }
	return trial.Group{
		Name: "idempotent", Unit: "delivery",
		About: "a handler that inserts one row, called without an inbox; every fifth message is delivered twice " +
			"at the same moment, and what fails comes again at once",
		Variants: []trial.Variant{
			{Name: ours(8), New: idempotentOurs(8)},
			{Name: ours(32), New: idempotentOurs(32)},
			{Name: naive(8), New: idempotentByHand(8, (*byhand.Consumer).InTransaction, true)},
			{Name: naive(32), New: idempotentByHand(32, (*byhand.Consumer).InTransaction, true)},
			{Name: loose(8), New: idempotentByHand(8, (*byhand.Consumer).Separately, false)},
			{Name: loose(32), New: idempotentByHand(32, (*byhand.Consumer).Separately, false)},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("idempotent_vs_naive_tx", []string{ours(8), ours(32)}, []string{naive(8), naive(32)}, 0),
			trial.RatioOfBest("idempotent_vs_naive_without_tx", []string{ours(8), ours(32)}, []string{loose(8), loose(32)}, 0),
		},
	}
}

const idempotentCount, idempotentQuick = 4_000, 1_000

// received is a message of a transport other than ours.
type received struct{ id string }

func (r received) MessageID() string { return r.id }

func idempotentOurs(atOnce int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		db, err := gorm.Open(postgres.Open(env.DSN), &gorm.Config{Logger: logger.Discard})
		if err != nil {
			return nil, err
		}
		pool, err := db.DB()
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(atOnce)
		pool.SetMaxIdleConns(atOnce)
		d := newDeliveries(env.Scale(idempotentCount, idempotentQuick), atTheSameMoment)
		handle, err := wrapped(ctx, db, env.DSN, d)
		if err != nil {
			_ = pool.Close()
			return nil, err
		}
		return onceTrial(env.DSN, d, "inbox_markers", true, func(ctx context.Context) error {
			return d.to(ctx, atOnce, func(ctx context.Context, id string) error { return handle(ctx, received{id}) })
		}, func() { _ = pool.Close() }), nil
	}
}

func wrapped(
	ctx context.Context, db *gorm.DB, dsn string, d *deliveries,
) (func(context.Context, received) error, error) {
	if err := effects.Create(ctx, dsn); err != nil {
		return nil, err
	}
	if err := models.Migrate(ctx, db, models.Naming{}, ""); err != nil {
		return nil, err
	}
	store, err := gormstore.New(db)
	if err != nil {
		return nil, err
	}
	return gormstore.Wrap(store, "bench-handler-1", func(_ context.Context, tx *gorm.DB, m received) error {
		d.calls.Add(1)
		return tx.Exec(effects.Insert, m.id).Error
	}, idempotent.Configure(func(o *idempotent.Options) { o.RequireStore = true }))
}

func idempotentByHand(
	atOnce int, once func(*byhand.Consumer, context.Context, string, func(*gorm.DB) error) error, strict bool,
) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		if err := effects.Create(ctx, env.DSN); err != nil {
			return nil, err
		}
		c, err := byhand.OpenConsumer(ctx, env.DSN, atOnce)
		if err != nil {
			return nil, err
		}
		d := newDeliveries(env.Scale(idempotentCount, idempotentQuick), atTheSameMoment)
		return onceTrial(env.DSN, d, "hand_processed", strict, func(ctx context.Context) error {
			return d.to(ctx, atOnce, func(ctx context.Context, id string) error {
				return once(c, ctx, id, func(db *gorm.DB) error {
					d.calls.Add(1)
					return db.Exec(effects.Insert, id).Error
				})
			})
		}, c.Close), nil
	}
}

// onceTrial checks that each message has its marker and its effect. If strict, each must have
// exactly one effect. The effects are counted after the timed part.
func onceTrial(
	dsn string, d *deliveries, markers string, strict bool, run func(context.Context) error, end func(),
) *trial.Trial {
	t := &trial.Trial{Count: len(d.ids), Close: end, Values: map[string]float64{}, Run: run}
	t.Check = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		var all, units, marked int
		err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM bench_effects), (SELECT count(DISTINCT unit) FROM bench_effects WHERE unit = ANY($1)),
			(SELECT count(DISTINCT message_id) FROM `+markers+` WHERE message_id = ANY($1))`, d.ids).Scan(&all, &units, &marked)
		if err != nil {
			return err
		}
		if units != d.messages || marked != d.messages || strict && all != units {
			return fmt.Errorf("%d effects, of %d messages, and %d markers; expected those of %d messages", all, units, marked,
				d.messages)
		}
		maps.Copy(t.Values, d.figures(all))
		return nil
	}
	return t
}
