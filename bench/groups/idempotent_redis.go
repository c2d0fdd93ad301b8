package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// IdempotentRedis is the same with markers, and effects, in Redis.
func IdempotentRedis() trial.Group {
	ours := func(atOnce int) string { return fmt.Sprintf("redisstore, %d at once", atOnce) }
	setNX := func(atOnce int) string { return fmt.Sprintf("SETNX, then run, %d at once", atOnce) }
	return trial.Group{
		Name: "idempotent_redis", Unit: "delivery",
		About: "handlers that append to a list in Redis, once for each message, though every fifth is delivered twice at the same moment; markers in the same Redis, which keeps nothing on disk. " +
			"SETNX by hand marks before it runs, so a crash or a failure in between loses the message: it is the least that can be done, not the same",
		Shared: newBenchRedis,
		Variants: []trial.Variant{
			{Name: ours(8), New: redisOurs(8)},
			{Name: ours(32), New: redisOurs(32)},
			{Name: setNX(8), New: redisByHand(8)},
			{Name: setNX(32), New: redisByHand(32)},
		},
		Lines: []trial.Line{trial.RatioOfBest("idempotent_redis_vs_setnx", []string{ours(8), ours(32)}, []string{setNX(8), setNX(32)}, 0)},
	}
}

// benchRedis is a server, which every trial has keys of its own in.
type benchRedis struct {
	server *servers.Redis // nil if it runs anyway
	url    string
}

func newBenchRedis(_ context.Context, lab *trial.Lab) (io.Closer, error) {
	if lab.Redis != "" {
		return &benchRedis{url: lab.Redis}, nil
	}
	server, err := servers.StartRedis(servers.RedisOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", trial.ErrLeftOut, err)
	}
	return &benchRedis{server, server.URL()}, nil
}

// Close ends the server.
func (r *benchRedis) Close() error {
	if r.server == nil {
		return nil
	}
	return r.server.Close()
}

// redisTrial is one trial's keys.
type redisTrial struct {
	*deliveries
	client *redis.Client
	prefix string
}

func newRedisTrial(env *trial.Env, atOnce int) (*redisTrial, error) {
	options, err := redis.ParseURL(env.Shared.(*benchRedis).url)
	if err != nil {
		return nil, err
	}
	options.PoolSize, options.ContextTimeoutEnabled = atOnce, true
	return &redisTrial{newDeliveries(env.Scale(20_000, 4_000)), redis.NewClient(options), "bench-" + uuid.NewString()}, nil
}

// effect is the handler.
func (r *redisTrial) effect(ctx context.Context, id string) error {
	r.calls.Add(1)
	return r.client.RPush(ctx, r.prefix+"-effects", id).Err()
}

// trial checks that each message has one effect, and its marker.
func (r *redisTrial) trial(atOnce int, handle func(ctx context.Context, id string) error, marked func(ctx context.Context, id string) (bool, error)) *trial.Trial {
	t := &trial.Trial{Count: len(r.ids), Values: map[string]float64{}, Close: r.close}
	t.Run = func(ctx context.Context) error { return r.to(ctx, atOnce, handle) }
	t.Check = func(ctx context.Context) error {
		found, err := r.client.LRange(ctx, r.prefix+"-effects", 0, -1).Result()
		if err != nil {
			return err
		}
		effects := map[string]int{}
		for _, id := range found {
			effects[id]++
		}
		for _, id := range r.ids {
			is, err := marked(ctx, id)
			if err != nil {
				return err
			}
			if effects[id] != 1 || !is {
				return fmt.Errorf("message %s has %d effects, and its marker is there: %t", id, effects[id], is)
			}
		}
		if len(effects) != r.messages {
			return fmt.Errorf("effects of %d messages; expected %d", len(effects), r.messages)
		}
		maps.Copy(t.Values, r.figures(len(found)))
		return nil
	}
	return t
}

// close removes the trial's keys.
func (r *redisTrial) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	keys := r.client.Scan(ctx, 0, r.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		_ = r.client.Unlink(ctx, keys.Val()).Err()
	}
	_ = r.client.Close()
}

func redisOurs(atOnce int) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce)
		if err != nil {
			return nil, err
		}
		store, err := redisstore.New(r.client, redisstore.KeyPrefix(r.prefix))
		if err != nil {
			return nil, errors.Join(err, r.client.Close())
		}
		const key = "bench-handler-1"
		handle, err := idempotent.Wrap(store, key, func(ctx context.Context, m received) error { return r.effect(ctx, m.id) })
		if err != nil {
			return nil, errors.Join(err, r.client.Close())
		}
		return r.trial(atOnce,
			func(ctx context.Context, id string) error { return handle(ctx, received{id}) },
			func(ctx context.Context, id string) (bool, error) {
				return store.Processed(ctx, idempotent.Key{MessageID: id, HandlerKey: key})
			}), nil
	}
}

func redisByHand(atOnce int) newTrial {
	return func(_ context.Context, env *trial.Env) (*trial.Trial, error) {
		r, err := newRedisTrial(env, atOnce)
		if err != nil {
			return nil, err
		}
		return r.trial(atOnce, func(ctx context.Context, id string) error {
			first, err := r.client.SetNX(ctx, r.prefix+":"+id, "processed", 24*time.Hour).Result()
			if err != nil || !first {
				return err
			}
			return r.effect(ctx, id)
		}, func(ctx context.Context, id string) (bool, error) {
			n, err := r.client.Exists(ctx, r.prefix+":"+id).Result()
			return n == 1, err
		}), nil
	}
}
