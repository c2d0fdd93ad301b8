package servers

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestDurableRedisKeepsItsDataThrough(t *testing.T) {
	r := startRedis(t, RedisOptions{Durable: true})
	for _, outage := range []struct {
		name string
		run  func() error
	}{
		{"an orderly restart", r.Stop},
		{"a crash", r.Kill},
		{"a crash while frozen", func() error { return firstError(r.Freeze, r.Kill, r.Kill, r.Stop) }},
		{"a stop while frozen", func() error { return firstError(r.Freeze, r.Stop, r.Stop, r.Kill, r.Thaw) }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			url := r.URL()
			require.NoError(t, redisClient(t, r).Set(t.Context(), outage.name, "kept", 0).Err())
			require.NoError(t, outage.run())
			require.Error(t, pingRedis(r, time.Second), "it still answers")
			require.NoError(t, r.Start())
			require.NoError(t, r.Start(), "twice")
			require.Equal(t, url, r.URL())
			require.Equal(t, "kept", redisClient(t, r).Get(t.Context(), outage.name).Val())
		})
	}
}

func TestRedisIsEmptyAfterACrashUnlessDurable(t *testing.T) {
	r := startRedis(t, RedisOptions{Settings: map[string]string{"maxmemory-policy": "allkeys-lru"}})
	require.NoError(t, redisClient(t, r).Set(t.Context(), "key", "value", 0).Err())
	require.Equal(t, map[string]string{"maxmemory-policy": "allkeys-lru"},
		redisClient(t, r).ConfigGet(t.Context(), "maxmemory-policy").Val())
	require.NoError(t, r.Kill())
	require.NoError(t, r.Start())
	require.ErrorIs(t, redisClient(t, r).Get(t.Context(), "key").Err(), redis.Nil)
}

func TestFrozenRedisHangsUntilThawed(t *testing.T) {
	r := startRedis(t, RedisOptions{})
	require.NoError(t, r.Freeze())
	require.NoError(t, r.Freeze(), "twice")
	require.ErrorIs(t, pingRedis(r, 300*time.Millisecond), os.ErrDeadlineExceeded)
	require.NoError(t, r.Thaw())
	require.NoError(t, r.Thaw(), "twice")
	require.NoError(t, pingRedis(r, 2*time.Minute))
}

func TestClosedRedisLeavesNothing(t *testing.T) {
	r := startRedis(t, RedisOptions{})
	pid := r.PID()
	require.NotZero(t, pid)
	require.NoError(t, r.Freeze())
	require.NoError(t, r.Close())
	require.NoError(t, r.Close(), "twice")
	require.Zero(t, r.PID())
	require.True(t, gone(pid))
	require.NoDirExists(t, r.directory.path)
	require.ErrorContains(t, r.Start(), "closed")
}

func TestFailedRedisStartShowsItsLog(t *testing.T) {
	_, err := StartRedis(RedisOptions{Settings: map[string]string{"maxmemory-policy": "not-a-policy"}})
	leaveOutIfMissing(t, err)
	require.ErrorContains(t, err, "not-a-policy")
	require.NotContains(t, err.Error(), "\n")
}

func TestMissingRedisIsNamed(t *testing.T) {
	t.Setenv(RedisEnv+MissingSuffix, "")
	t.Setenv("PATH", t.TempDir())
	_, err := StartRedis(RedisOptions{})
	require.EqualError(t, err, "Redis: no redis-server on the PATH; install redis-server or set INBOX_TEST_REDIS")
}

func startRedis(t *testing.T, options RedisOptions) *Redis {
	t.Helper()
	r, err := StartRedis(options)
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func redisClient(t *testing.T, r *Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(r.URL())
	require.NoError(t, err)
	client := redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func pingRedis(r *Redis, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return PingRedis(ctx, r.URL())
}
