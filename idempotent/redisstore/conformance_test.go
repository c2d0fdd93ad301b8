package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/idempotenttest"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		waits  time.Duration
		client func(t *testing.T, r rig) redis.UniversalClient
	}{
		"waiting":        {6 * time.Second, func(_ *testing.T, r rig) redis.UniversalClient { return r.client }},
		"not waiting":    {0, func(_ *testing.T, r rig) redis.UniversalClient { return r.client }},
		"before Redis 7": {6 * time.Second, clientBeforeRedis7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
				r := newRig(t)
				return idempotenttest.Fixture{
					Store:   r.storeOn(t, c.client(t, r), func(o *redisstore.Options) { o.WaitTimeout = c.waits }),
					Forgets: true,
					Waits:   c.waits,
					Crash:   r.crash,
					Usurp:   r.usurp,
				}
			})
		})
	}
}

func clientBeforeRedis7(t *testing.T, r rig) redis.UniversalClient {
	client := r.another(t)
	client.AddHook(r.beforeRedis7(pass))
	return client
}

// crash returns when the lease of the dead process has ended.
func (r rig) crash(t *testing.T, run idempotent.Run) {
	e := startElsewhere(t, order{r.url, r.prefix, time.Second, run})
	require.NoError(t, e.command.Process.Kill())
	key := r.prefix + ":{" + run.Key.MessageID + "}:" + run.Key.HandlerKey
	require.Equal(t, int64(1), r.client.Exists(t.Context(), key).Val(), "a crash leaves the claim")
	require.Eventually(t, func() bool {
		return r.client.Exists(t.Context(), key).Val() == 0
	}, patience, 5*time.Millisecond)
}

func (r rig) usurp(t *testing.T, key idempotent.Key) {
	name := r.prefix + ":{" + key.MessageID + "}:" + key.HandlerKey
	require.NoError(t, r.client.Del(t.Context(), name).Err())
	startElsewhere(t, order{r.url, r.prefix, time.Minute, idempotent.Run{Key: key}})
}
