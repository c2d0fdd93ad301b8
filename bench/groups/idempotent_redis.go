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
	g := trial.Group{
		Name: "idempotent_redis", Unit: "delivery", NoPostgres: true,
		About: "the same with a handler that appends to a list in the Redis that has the markers; redis_us is its " +
			"CPU per delivery. A duplicate of what `redisstore` runs waits and asks again, as one of the 8 or 32 at once; " +
			"what is written by hand runs it. Where duplicates come later, all skip them",
		Shared: newBenchRedis,
	}
	either := func(way string, trials func(atOnce int, when again) newTrial, when again) (names []string) {
		for _, atOnce := range []int{8, 32} {
			name := fmt.Sprintf("%s, %d at once", way, atOnce)
			if when == later {
				name += ", duplicates later"
			}
			g.Variants = append(g.Variants, trial.Variant{Name: name, New: trials(atOnce, when)})
			names = append(names, name)
		}
		return names
	}
	setNX := func(atOnce int, when again) newTrial { return redisByHand(atOnce, when, markThenRun, true) }
	naive := func(atOnce int, when again) newTrial { return redisByHand(atOnce, when, checkRunMark, false) }
	const byStore, bySetNX, byHand = "redisstore", "SET NX, then run", "GET, run, SET"
	ours := either(byStore, redisOurs, atTheSameMoment)
	hand := either(byHand, naive, atTheSameMoment)
	marked := either(bySetNX, setNX, atTheSameMoment)
	oursLater, handLater := either(byStore, redisOurs, later), either(byHand, naive, later)
	g.Lines = []trial.Line{
		trial.RatioOfBest("idempotent_redis_vs_naive", ours, hand, 0.85).Times(2),
		trial.RatioOfBest("idempotent_redis_vs_setnx", ours, marked, 0),
		trial.RatioOfBest("idempotent_redis_later_vs_naive", oursLater, handLater, 0.85).Times(2),
	}
	return g
}

func redisOurs(atOnce int, when again) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce, when)
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
func redisByHand(atOnce int, when again,
	once func(ctx context.Context, client *redis.Client, marker string, run func() error) error, strict bool,
) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce, when)
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
