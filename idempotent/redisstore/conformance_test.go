package redisstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/idempotenttest"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

func TestConformance(t *testing.T) {
	for name, waits := range map[string]time.Duration{"waiting": 6 * time.Second, "not waiting": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
				r := newRig(t)
				return idempotenttest.Fixture{
					Store:   r.store(t, func(o *redisstore.Options) { o.WaitTimeout = waits }),
					Forgets: true,
					Waits:   waits,
					Crash:   r.crash,
					Usurp:   r.usurp,
				}
			})
		})
	}
}

// crash returns when the lease of the dead process has ended.
func (r rig) crash(t *testing.T, run idempotent.Run) {
	e := startElsewhere(t, order{r.url, r.prefix, time.Second, run})
	require.NoError(t, e.command.Process.Kill())
	key := r.prefix + ":{" + run.Key.HandlerKey + ":" + run.Key.MessageID + "}"
	require.Equal(t, int64(1), r.client.Exists(t.Context(), key).Val(), "a crash leaves the claim")
	require.Eventually(t, func() bool {
		return r.client.Exists(t.Context(), key).Val() == 0
	}, patience, 5*time.Millisecond)
}

func (r rig) usurp(t *testing.T, key idempotent.Key) {
	name := r.prefix + ":{" + key.HandlerKey + ":" + key.MessageID + "}"
	require.NoError(t, r.client.Del(t.Context(), name).Err())
	startElsewhere(t, order{r.url, r.prefix, time.Minute, idempotent.Run{Key: key}})
}
