package redisstore_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

// A retention of 292 years stands for "forever", and must work: a TTL that does not fit would be
// refused after each success, and the body would run each time.
func TestMarkerOfTheLongestRetentionStays(t *testing.T) {
	r := newRig(t)
	store := r.store(t, func(o *redisstore.Options) { o.Retention = math.MaxInt64 })
	for name, retention := range map[string]time.Duration{"run": math.MaxInt64, "store": 0} {
		key := idempotent.Key{MessageID: name, HandlerKey: "billing"}
		_, err := store.Run(t.Context(), idempotent.Run{Key: key, Retention: retention}, succeed)
		require.NoError(t, err)
		// not a Duration: the client's would overflow
		left, err := r.client.Do(t.Context(), "PTTL", r.prefix+":{"+name+"}:billing").Int64()
		require.NoError(t, err)
		longest := time.Duration(math.MaxInt64).Milliseconds()
		require.LessOrEqual(t, left, longest+1)
		require.Greater(t, left, longest-time.Minute.Milliseconds())
	}
}

func TestPermanentlyRefusedMarkerIsNotRetriedForALease(t *testing.T) {
	r := newRig(t)
	finalised, refused := 0, 0
	store := r.on(t, func(_ context.Context, cmd redis.Cmder, send func() error) error {
		err := send()
		if finalises(cmd) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			finalised++
			if err != nil {
				refused++
			}
		}
		return err
	}, func(o *redisstore.Options) { o.Lease = 10 * time.Second })
	_, err := store.Run(t.Context(), run(payment), func(ctx context.Context) error {
		require.NoError(t, r.client.Del(ctx, r.key()).Err())
		return r.client.LPush(ctx, r.key(), "no string").Err()
	})
	require.ErrorIs(t, err, idempotent.ErrLost)
	require.ErrorContains(t, err, "the marker was refused: ")
	require.ErrorContains(t, err, "WRONGTYPE")
	require.Equal(t, []int{1, 1}, []int{finalised, refused})
}

// An application configures a wrapper, whose own default must not replace the store's.
func TestWrapperRetentionOverridesTheStores(t *testing.T) {
	for name, c := range map[string]struct {
		store []func(*redisstore.Options)
		wrap  []idempotent.Option
		want  time.Duration
	}{
		"the default, seven days": {want: 7 * 24 * time.Hour},
		"the store's": {store: []func(*redisstore.Options){func(o *redisstore.Options) { o.Retention = 30 * 24 * time.Hour }},
			want: 30 * 24 * time.Hour},
		"the handler's": {
			store: []func(*redisstore.Options){func(o *redisstore.Options) { o.Retention = 30 * 24 * time.Hour }},
			wrap:  []idempotent.Option{idempotent.Configure(func(o *idempotent.Options) { o.Retention = 3 * time.Hour })},
			want:  3 * time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := idempotent.KeyBy(func(id string) (string, error) { return id, nil })
			handle, err := idempotent.Wrap(r.store(t, c.store...), payment.HandlerKey,
				func(context.Context, string) error { return nil }, append(c.wrap, id)...)
			require.NoError(t, err)
			require.NoError(t, handle(t.Context(), payment.MessageID))
			r.requireTTL(t, c.want)
		})
	}
}
