package groups

import (
	"context"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// benchRedis is a server in which every trial has keys of its own.
type benchRedis struct {
	server *servers.Redis // nil for an external server
	url    string
	prefix string // of all trials' keys
}

func newBenchRedis(_ context.Context, lab *trial.Lab) (io.Closer, error) {
	prefix := "inbox-bench-" + uuid.NewString()
	if lab.Redis != "" {
		return &benchRedis{url: lab.Redis, prefix: prefix}, nil
	}
	server, err := servers.StartRedis(servers.RedisOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", trial.ErrLeftOut, err)
	}
	return &benchRedis{server, server.URL(), prefix}, nil
}

// Close stops the server if it was started for the group.
func (r *benchRedis) Close() error {
	if r.server == nil {
		return nil
	}
	return r.server.Close()
}

// cpu returns the server's CPU time, or zero for an external server.
func (r *benchRedis) cpu() (time.Duration, error) {
	if r.server == nil {
		return 0, nil
	}
	return server.CPU(r.server.PID())
}

// redisTrial has the keys of one trial.
type redisTrial struct {
	*deliveries
	server *benchRedis
	client *redis.Client
	prefix string
}

func newRedisTrial(env *trial.Env, atOnce int, when again) (*redisTrial, error) {
	server := env.Shared.(*benchRedis)
	options, err := redis.ParseURL(server.url)
	if err != nil {
		return nil, err
	}
	options.PoolSize, options.ContextTimeoutEnabled = atOnce, true
	return &redisTrial{newDeliveries(env.Scale(30_000, 3_000), when), server, redis.NewClient(options),
		server.prefix + "-" + uuid.NewString()}, nil
}

// effect is the handler.
func (r *redisTrial) effect(ctx context.Context, id string) error {
	r.calls.Add(1)
	return r.client.RPush(ctx, r.prefix+"-effects", id).Err()
}

// trial checks that each message has its marker and its effect. If strict, each must have exactly
// one effect.
func (r *redisTrial) trial(atOnce int, strict bool, handle func(ctx context.Context, id string) error,
	marked func(ctx context.Context, id string) (bool, error),
) *trial.Trial {
	t := &trial.Trial{Count: len(r.ids), Values: map[string]float64{}, Close: r.close}
	t.Run = func(ctx context.Context) error {
		before, err := r.server.cpu()
		if err != nil {
			return err
		}
		if err := r.to(ctx, atOnce, handle); err != nil {
			return err
		}
		after, err := r.server.cpu()
		t.Values["redis_us"] = float64((after - before).Microseconds()) / float64(len(r.ids))
		return err
	}
	t.Check = func(ctx context.Context) error {
		found, err := r.client.LRange(ctx, r.prefix+"-effects", 0, -1).Result()
		if err != nil {
			return err
		}
		effects := map[string]int{}
		for _, id := range found {
			effects[id]++
		}
		if len(effects) != r.messages {
			return fmt.Errorf("effects of %d messages; expected those of %d", len(effects), r.messages)
		}
		err = trial.InBatches(ctx, len(r.ids), 100, atOnce, func(ctx context.Context, from, to int) error {
			for _, id := range r.ids[from:to] {
				is, err := marked(ctx, id)
				if err != nil {
					return err
				}
				if effects[id] == 0 || strict && effects[id] != 1 || !is {
					return fmt.Errorf("message %s has %d effects, and its marker is there: %t", id, effects[id], is)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		maps.Copy(t.Values, r.figures(len(found)))
		return nil
	}
	return t
}

// close removes the trial's keys.
func (r *redisTrial) close() {
	defer r.client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		keys, next, err := r.client.Scan(ctx, cursor, r.prefix+"*", 1000).Result()
		if err != nil {
			return
		}
		if len(keys) > 0 {
			_ = r.client.Unlink(ctx, keys...).Err()
		}
		cursor = next
	}
}
