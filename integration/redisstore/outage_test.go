// Package redisstore tests the Redis store while its server crashes, hangs, loses data or is a
// cluster.
package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

const (
	patience = testenv.Patience
	lease    = 3 * time.Second
)

func TestMain(m *testing.M) {
	redis.SetLogger(silence{}) // it logs a line for every failed dial
	goleak.VerifyTestMain(m)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

var payment = idempotent.Run{Key: idempotent.Key{MessageID: "m1", HandlerKey: "billing"}, Retention: time.Hour}

func start(t *testing.T, options servers.RedisOptions) *servers.Redis {
	t.Helper()
	server, err := servers.StartRedis(options)
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// newClient returns a client with a far longer timeout than any test.
func newClient(t *testing.T, server *servers.Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(server.URL())
	require.NoError(t, err)
	options.ReadTimeout, options.ContextTimeoutEnabled = time.Hour, true
	client := redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func newStore(t *testing.T, server *servers.Redis, opts ...func(*redisstore.Options)) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(newClient(t, server),
		append([]func(*redisstore.Options){func(o *redisstore.Options) { o.Lease = lease }}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

func handled(t *testing.T, store idempotent.Store) {
	t.Helper()
	calls := 0
	duplicate, err := store.Run(t.Context(), payment, func(context.Context) error { calls++; return nil })
	require.NoError(t, err)
	require.False(t, duplicate)
	require.Equal(t, 1, calls)
}

func skipped(t *testing.T, store idempotent.Store) {
	t.Helper()
	duplicate, err := store.Run(t.Context(), payment, func(context.Context) error { return errors.New("called again") })
	require.NoError(t, err)
	require.True(t, duplicate)
}

// warm makes a new store handle another message. Before its first body, a store tries a script,
// which would renew the claim of the test.
func warm(t *testing.T, store idempotent.Store) {
	t.Helper()
	other := payment
	other.Key.MessageID = "warm-up"
	_, err := store.Run(t.Context(), other, func(context.Context) error { return nil })
	require.NoError(t, err)
}

// failures receives a value for every command that fails.
type failures chan<- struct{}

func (failures) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f failures) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		// A script that a new server does not know is not a failure.
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			f <- struct{}{}
		}
		return err
	}
}

func (failures) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// awaitCancel waits until the body's context is cancelled because its claim is lost.
func awaitCancel(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(patience):
	}
	require.ErrorIs(t, context.Cause(ctx), idempotent.ErrLost)
}

func TestServerThatDiesInTheBody(t *testing.T) {
	t.Run("and stays away ends the body before its lease does", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		_, err := newStore(t, server).Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Kill())
			awaitCancel(t, ctx)
			return nil
		})
		require.ErrorIs(t, err, idempotent.ErrLost)
	})
	t.Run("and comes back empty is no success", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		store := newStore(t, server)
		_, err := store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Kill())
			require.NoError(t, server.Start())
			awaitCancel(t, ctx)
			return nil
		})
		require.ErrorIs(t, err, idempotent.ErrLost)
		handled(t, store)
		skipped(t, store)
	})
	t.Run("and comes back with its data within the lease does no harm", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{Durable: true})
		store := newStore(t, server, func(o *redisstore.Options) { o.Lease = patience })
		_, err := store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Kill())
			require.NoError(t, server.Start())
			return ctx.Err()
		})
		require.NoError(t, err)
		skipped(t, store)
	})
	t.Run("and is back before the lease's end finalises", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{Durable: true})
		client, failed := newClient(t, server), make(chan struct{}, 100)
		client.AddHook(failures(failed))
		store, err := redisstore.New(client, func(o *redisstore.Options) { o.Lease = patience })
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		started := make(chan error, 1)
		_, err = store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Kill())
			go func() {
				<-failed // the first attempt to finalise
				started <- server.Start()
			}()
			return nil
		})
		require.NoError(t, <-started)
		require.NoError(t, err)
		skipped(t, store)
	})
}

func TestServerThatHangsBeyondTheLease(t *testing.T) {
	t.Run("ends the body in time and stores no marker", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		store, second := newStore(t, server, func(o *redisstore.Options) { o.Lease = 2 * lease }), newStore(t, server)
		warm(t, store)
		began := time.Now()
		_, err := store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Freeze())
			awaitCancel(t, ctx)
			// The server's lease began after began, and so ends later than this.
			require.Less(t, time.Since(began), 2*lease, "another call may have begun")
			return nil
		})
		require.ErrorIs(t, err, idempotent.ErrLost)
		awaitLeaseEnd(began, 2*lease)
		require.NoError(t, server.Thaw())
		handled(t, second)
		skipped(t, store)
	})
	t.Run("refuses a late success", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		store, second := newStore(t, server), newStore(t, server)
		began := time.Now()
		_, err := store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Freeze())
			return nil // the body succeeds; its finalise waits in the server's socket
		})
		require.ErrorIs(t, err, idempotent.ErrLost)
		awaitLeaseEnd(began, lease)
		require.NoError(t, server.Thaw())
		require.NoError(t, store.Close(), "whose late commands have been answered then")
		is, err := second.Processed(t.Context(), payment.Key)
		require.NoError(t, err)
		require.False(t, is, "the stale token was taken")
		handled(t, second)
	})
	t.Run("keeps the claim of a newer owner", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		store, second := newStore(t, server), newStore(t, server)
		began := time.Now()
		_, err := store.Run(t.Context(), payment, func(ctx context.Context) error {
			require.NoError(t, server.Freeze())
			awaitCancel(t, ctx)
			return errors.New("interrupted")
		})
		require.ErrorIs(t, err, idempotent.ErrLost)
		awaitLeaseEnd(began, lease)
		require.NoError(t, server.Thaw())
		var third atomic.Bool
		_, err = second.Run(t.Context(), payment, func(ctx context.Context) error {
			_ = store.Close() // whatever the first had under way has arrived
			_, err := newStore(t, server, func(o *redisstore.Options) { o.WaitTimeout = 0 }).Run(ctx, payment,
				func(context.Context) error {
					third.Store(true)
					return nil
				})
			require.ErrorIs(t, err, idempotent.ErrInProgress)
			return nil
		})
		require.NoError(t, err)
		require.False(t, third.Load())
		skipped(t, second)
	})
}

// awaitLeaseEnd waits until the server would have dropped a claim that was last renewed at since. A
// server that hangs cannot be asked.
func awaitLeaseEnd(since time.Time, lease time.Duration) {
	<-time.After(time.Until(since.Add(2 * lease)))
}

func TestUnreachableServerFailsQuicklyAndRunsNothing(t *testing.T) {
	for name, outage := range map[string]func(*servers.Redis) error{
		"dead":    (*servers.Redis).Kill,
		"hanging": (*servers.Redis).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, servers.RedisOptions{})
			store := newStore(t, server)
			require.NoError(t, outage(server))
			_, err := store.Run(t.Context(), payment, func(context.Context) error { panic("called") })
			require.ErrorContains(t, err, `redisstore: handler "billing", message "m1": claim: `)
			require.NotErrorIs(t, err, idempotent.ErrLost)
			_, err = store.Processed(t.Context(), payment.Key)
			require.Error(t, err)
			require.NoError(t, server.Thaw())
			require.NoError(t, server.Start())
			handled(t, store)
		})
	}
}

func TestEvictingServerIsLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]string
		warned   int
	}{
		"some keys":          {map[string]string{"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, 1},
		"all keys":           {map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-random"}, 1},
		"none":               {map[string]string{"maxmemory": "100mb", "maxmemory-policy": "noeviction"}, 0},
		"without a limit":    {map[string]string{"maxmemory-policy": "allkeys-lru"}, 0},
		"as Redis is set up": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zapcore.DebugLevel)
			store := newStore(t, start(t, servers.RedisOptions{Settings: c.settings}), func(o *redisstore.Options) {
				o.Logger = zap.New(core)
			})
			handled(t, store)
			other := payment
			other.Key.MessageID = "m2"
			_, err := store.Run(t.Context(), other, func(context.Context) error { return nil })
			require.NoError(t, err)
			require.Equal(t, c.warned, logs.FilterMessageSnippet("its maxmemory-policy must be noeviction").Len(), "%+v",
				logs.All())
			require.Equal(t, c.warned, logs.Len())
		})
	}
}

func TestRequireNoEvictionRefusesEvictingServers(t *testing.T) {
	t.Run("an evicting server is refused before anything is claimed", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{Settings: map[string]string{"maxmemory": "100mb",
			"maxmemory-policy": "volatile-lru"}})
		store := newStore(t, server, func(o *redisstore.Options) { o.RequireNoEviction = true })
		_, err := store.Run(t.Context(), payment, func(context.Context) error { panic("called") })
		require.ErrorIs(t, err, redisstore.ErrMayEvict)
		require.ErrorContains(t, err, "not volatile-lru")
		require.ErrorIs(t, store.CheckEviction(t.Context()), redisstore.ErrMayEvict)
		client := newClient(t, server)
		require.Empty(t, client.Keys(t.Context(), "*").Val())
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
		handled(t, store)
		require.NoError(t, store.CheckEviction(t.Context()))
	})
	t.Run("a server that begins to evict is refused within a lease", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{Settings: map[string]string{"maxmemory": "100mb",
			"maxmemory-policy": "noeviction"}})
		store := newStore(t, server, func(o *redisstore.Options) { o.RequireNoEviction = true })
		handled(t, store)
		client := newClient(t, server)
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		require.Eventually(t, func() bool {
			_, err := store.Run(t.Context(), payment, func(context.Context) error { return nil })
			return errors.Is(err, redisstore.ErrMayEvict)
		}, testenv.Patience, 10*time.Millisecond)
	})
	t.Run("a server without a limit evicts nothing", func(t *testing.T) {
		t.Parallel()
		handled(t, newStore(t, start(t, servers.RedisOptions{Settings: map[string]string{"maxmemory-policy": "allkeys-lru"}}),
			func(o *redisstore.Options) { o.RequireNoEviction = true }))
	})
	t.Run("each master of a cluster is asked", func(t *testing.T) {
		t.Parallel()
		client := newCluster(t, 2)
		store, err := redisstore.New(client, func(o *redisstore.Options) { o.RequireNoEviction = true })
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		require.NoError(t, store.CheckEviction(t.Context()))
		last := redis.NewClient(&redis.Options{Addr: client.Options().Addrs[1]})
		t.Cleanup(func() { require.NoError(t, last.Close()) })
		require.NoError(t, last.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		require.NoError(t, last.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.ErrorIs(t, store.CheckEviction(t.Context()), redisstore.ErrMayEvict)
	})
	t.Run("a server that refuses INFO is refused", func(t *testing.T) {
		t.Parallel()
		server := start(t, servers.RedisOptions{})
		client := newClient(t, server)
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())
		_, err := newStore(t, server, func(o *redisstore.Options) { o.RequireNoEviction = true }).Run(t.Context(), payment,
			func(context.Context) error { panic("called") })
		require.ErrorIs(t, err, redisstore.ErrMayEvict)
	})
}

func TestServerWithoutMemoryRunsNothing(t *testing.T) {
	t.Parallel()
	server := start(t, servers.RedisOptions{Settings: map[string]string{"maxmemory": "1",
		"maxmemory-policy": "noeviction"}})
	_, err := newStore(t, server).Run(t.Context(), payment, func(context.Context) error { panic("called") })
	require.ErrorContains(t, err, "claim: OOM")
}
