package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestEachIdempotentVariantWorksAndIsChecked(t *testing.T) {
	g := Idempotent()
	for _, v := range kinds(t, g) {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			env := &trial.Env{Lab: &trial.Lab{Tiny: true, Log: io.Discard}, DSN: testenv.PostgresDSN(t)}
			one, err := v.New(ctx, env)
			require.NoError(t, err)
			defer one.Close()
			require.Error(t, one.Check(ctx), "the check passes before the work is done")
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
			doubled := one.Values["doubled_per_1000"]

			conn, err := pgx.Connect(ctx, env.DSN)
			require.NoError(t, err)
			defer conn.Close(ctx)
			change := func(statement string) {
				tag, err := conn.Exec(ctx, statement)
				require.NoError(t, err)
				require.Positive(t, tag.RowsAffected(), statement)
			}
			change(`INSERT INTO bench_effects (unit) SELECT min(unit) FROM bench_effects`)
			if v.Name == "check, run, mark without one, 8 at once" {
				require.NoError(t, one.Check(ctx))
				require.InDelta(t, doubled+1000.0/300, one.Values["doubled_per_1000"], 1e-6)
			} else {
				require.Zero(t, doubled)
				require.Error(t, one.Check(ctx), "the check does not notice an effect more")
			}
			change(`DELETE FROM bench_effects WHERE id = (SELECT max(id) FROM bench_effects)`)
			require.NoError(t, one.Check(ctx))
			markers := "inbox_markers"
			if v.Name != g.Variants[0].Name {
				markers = "hand_processed"
			}
			change(`UPDATE ` + markers + ` SET message_id = 'gone' WHERE message_id = (SELECT min(message_id) FROM ` + markers +
				`)`)
			require.Error(t, one.Check(ctx), "the check does not notice a marker less")
			change(`UPDATE ` + markers + ` SET message_id = (SELECT min(unit) FROM bench_effects) WHERE message_id = 'gone'`)
			require.NoError(t, one.Check(ctx))
			change(`DELETE FROM bench_effects WHERE unit = (SELECT max(unit) FROM bench_effects)`)
			require.Error(t, one.Check(ctx), "the check does not notice an effect less")
		})
	}
}

func TestEachIdempotentRedisVariantWorksAndIsChecked(t *testing.T) {
	g := IdempotentRedis()
	url, _ := testenv.Redis(t)
	lab := &trial.Lab{Tiny: true, Log: io.Discard, Redis: url}
	shared, err := g.Shared(t.Context(), lab)
	require.NoError(t, err)
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	for _, v := range kinds(t, g) {
		t.Run(v.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			one, err := v.New(ctx, &trial.Env{Lab: lab, Shared: shared})
			require.NoError(t, err)
			end := sync.OnceFunc(one.Close)
			defer end()
			require.Error(t, one.Check(ctx), "the check passes before the work is done")
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
			doubled := one.Values["doubled_per_1000"]
			require.NoError(t, one.Run(ctx)) // all messages again, now known
			require.NoError(t, one.Check(ctx))
			require.Equal(t, doubled, one.Values["doubled_per_1000"])

			var effects, marker string
			keys := keysOf(t, client, shared)
			require.Len(t, keys, 301)
			for _, key := range keys {
				if strings.HasSuffix(key, "-effects") {
					effects = key
				} else {
					marker = key
				}
			}
			last, err := client.LIndex(ctx, effects, -1).Result()
			require.NoError(t, err)
			require.NoError(t, client.RPush(ctx, effects, last).Err())
			if strings.HasPrefix(v.Name, "GET, run, SET") {
				require.NoError(t, one.Check(ctx))
				require.InDelta(t, doubled+1000.0/300, one.Values["doubled_per_1000"], 1e-6)
			} else {
				require.Zero(t, doubled)
				require.Error(t, one.Check(ctx), "the check does not notice an effect more")
			}
			require.NoError(t, client.RPop(ctx, effects).Err())
			require.NoError(t, one.Check(ctx))
			require.NoError(t, client.Rename(ctx, marker, shared.(*benchRedis).prefix+"-aside").Err())
			require.Error(t, one.Check(ctx), "the check does not notice a marker less")
			require.NoError(t, client.Rename(ctx, shared.(*benchRedis).prefix+"-aside", marker).Err())
			require.NoError(t, one.Check(ctx))
			require.NoError(t, client.LRem(ctx, effects, 0, last).Err())
			require.Error(t, one.Check(ctx), "the check does not notice an effect less")
			end()
			require.Empty(t, keysOf(t, client, shared), "left behind")
		})
	}
	require.NoError(t, shared.Close())
}

// keysOf returns the keys of the group's trials that are not closed yet.
func keysOf(t *testing.T, client *redis.Client, shared io.Closer) (keys []string) {
	t.Helper()
	found := client.Scan(t.Context(), 0, shared.(*benchRedis).prefix+"*", 1000).Iterator()
	for found.Next(t.Context()) {
		keys = append(keys, found.Val())
	}
	require.NoError(t, found.Err())
	slices.Sort(keys)
	return slices.Compact(keys) // a scan may return a key twice
}

func TestDeliveriesAreDuplicatedAndRetried(t *testing.T) {
	d := newDeliveries(10, later)
	require.Len(t, d.ids, 12)
	require.Equal(t, []string{d.ids[0], d.ids[5]}, d.ids[10:])
	d = newDeliveries(10, atTheSameMoment)
	require.Len(t, d.ids, 12)
	require.Equal(t, d.ids[0], d.ids[1])
	require.Equal(t, d.ids[6], d.ids[7])
	var calls atomic.Int64
	require.NoError(t, d.to(t.Context(), 1, func(context.Context, string) error {
		if calls.Add(1) == 3 {
			return errors.New("not now")
		}
		return nil
	}))
	require.EqualValues(t, 13, calls.Load())
	d.calls.Store(11)
	require.Equal(t, map[string]float64{"doubled_per_1000": 200, "reruns_per_1000": 100, "refused_per_1000": 100},
		d.figures(12))
	require.ErrorContains(t, d.to(t.Context(), 1, func(context.Context, string) error {
		return errors.New("never")
	}), fmt.Sprintf("failed %d times: never", maxTries))
}
