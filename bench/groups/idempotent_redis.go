package groups

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

// IdempotentRedis measures the same with markers, and effects, in Redis.
func IdempotentRedis() trial.Group {
	ours := func(atOnce int) string { return fmt.Sprintf("redisstore, %d at once", atOnce) }
	setNX := func(atOnce int) string { return fmt.Sprintf("SET NX, then run, %d at once", atOnce) }
	naive := func(atOnce int) string { return fmt.Sprintf("GET, run, SET, %d at once", atOnce) }
	return trial.Group{
		Name: "idempotent_redis", Unit: "delivery", NoDatabase: true,
		About: "the same with a handler that appends to a list in the Redis that has the markers; redis_us is its " +
			"CPU per delivery. A duplicate of what `redisstore` runs asks again after 5 to 15 ms, as one of the 8 or 32 at once",
		Shared: newBenchRedis,
		Variants: []trial.Variant{
			{Name: ours(8), New: redisOurs(8)},
			{Name: ours(32), New: redisOurs(32)},
			{Name: setNX(8), New: redisByHand(8, markThenRun, true)},
			{Name: setNX(32), New: redisByHand(32, markThenRun, true)},
			{Name: naive(8), New: redisByHand(8, checkRunMark, false)},
			{Name: naive(32), New: redisByHand(32, checkRunMark, false)},
		},
		Lines: []trial.Line{
			trial.RatioOfBest("idempotent_redis_vs_setnx", []string{ours(8), ours(32)}, []string{setNX(8), setNX(32)}, 0),
			trial.RatioOfBest("idempotent_redis_vs_naive", []string{ours(8), ours(32)}, []string{naive(8), naive(32)}, 0),
		},
	}
}

func redisOurs(atOnce int) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce)
		if err != nil {
			return nil, err
		}
		store, err := redisstore.New(r.client, func(o *redisstore.Options) { o.KeyPrefix = r.prefix })
		if err != nil {
			return nil, errors.Join(err, r.client.Close())
		}
		const key = "bench-handler-1"
		handle, err := idempotent.Wrap(store, key, func(ctx context.Context, m received) error { return r.effect(ctx, m.id) })
		if err != nil {
			return nil, errors.Join(err, r.client.Close())
		}
		return r.trial(atOnce, true,
			func(ctx context.Context, id string) error { return handle(ctx, received{id}) },
			func(ctx context.Context, id string) (bool, error) {
				return store.Processed(ctx, idempotent.Key{MessageID: id, HandlerKey: key})
			}), nil
	}
}

// handMarked is how long the markers written by hand are kept, which is the value in the articles.
const handMarked = 24 * time.Hour

// redisByHand measures one of the ways in articles. once must call run if the marker does not
// exist.
func redisByHand(atOnce int,
	once func(ctx context.Context, client *redis.Client, marker string, run func() error) error, strict bool,
) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce)
		if err != nil {
			return nil, err
		}
		marker := func(id string) string { return r.prefix + ":" + id }
		return r.trial(atOnce, strict,
			func(ctx context.Context, id string) error {
				return once(ctx, r.client, marker(id), func() error { return r.effect(ctx, id) })
			},
			func(ctx context.Context, id string) (bool, error) {
				n, err := r.client.Exists(ctx, marker(id)).Result()
				return n == 1, err
			}), nil
	}
}

// markThenRun considers a message processed before it runs.
func markThenRun(ctx context.Context, client *redis.Client, marker string, run func() error) error {
	err := client.SetArgs(ctx, marker, "processed", redis.SetArgs{Mode: "NX", TTL: handMarked}).Err()
	if errors.Is(err, redis.Nil) {
		return nil // the marker exists
	}
	if err != nil {
		return err
	}
	return run()
}

// checkRunMark may run two concurrent deliveries of a message, because both may find no marker.
func checkRunMark(ctx context.Context, client *redis.Client, marker string, run func() error) error {
	err := client.Get(ctx, marker).Err()
	if err == nil {
		return nil
	}
	if !errors.Is(err, redis.Nil) {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	return client.Set(ctx, marker, "processed", handMarked).Err()
}
