package redisstore

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
)

func TestForgottenScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	server := start(t, servers.RedisOptions{})
	store, other := newStore(t, server), newClient(t, server)
	_, err := store.Run(t.Context(), payment, func(ctx context.Context) error { return other.ScriptFlush(ctx).Err() })
	require.NoError(t, err)
	skipped(t, store)
}

func TestDatabaseOptionOverridesTheURL(t *testing.T) {
	t.Parallel()
	server := start(t, servers.RedisOptions{})
	open := func(opts ...func(*redisstore.Options)) *redisstore.Store {
		store, err := redisstore.Open(server.URL(), opts...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close(), "twice") })
		return store
	}
	first, second := open(func(o *redisstore.Options) { o.Database = 7 }), open()
	handled(t, first)
	keys := func() []int64 {
		options := newClient(t, server).Options()
		seven := redis.NewClient(&redis.Options{Addr: options.Addr, DB: 7})
		t.Cleanup(func() { require.NoError(t, seven.Close()) })
		return []int64{newClient(t, server).DBSize(t.Context()).Val(), seven.DBSize(t.Context()).Val()}
	}
	require.Equal(t, []int64{0, 1}, keys())
	handled(t, second)
	require.Equal(t, []int64{1, 1}, keys())

	require.NoError(t, first.Close())
	_, err := first.Processed(t.Context(), payment.Key)
	require.ErrorIs(t, err, redis.ErrClosed)
}
