package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

func TestOptionErrorsStateTheAllowedRange(t *testing.T) {
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	long := make([]byte, 201)
	for want, option := range map[string]func(*redisstore.Options){
		`option KeyPrefix = "": must be 1 to 200 characters`: func(o *redisstore.Options) { o.KeyPrefix = "" },
		`option KeyPrefix = "a{}": must be 1 to 200 characters without "{}"`: func(o *redisstore.Options) {
			o.KeyPrefix = "a{}"
		},
		`": must be 1 to 200 characters`: func(o *redisstore.Options) {
			o.KeyPrefix = string(long)
		},
		"option Lease = 99ms: must be 100ms or more": func(o *redisstore.Options) {
			o.Lease = 99 * time.Millisecond
		},
		"option WaitTimeout = -1ns: must be 0 (does not wait) or more": func(o *redisstore.Options) { o.WaitTimeout = -1 },
		"option OperationTimeout = -1ns: must be 0 (chosen by the store) to a third of Lease": func(o *redisstore.Options) {
			o.OperationTimeout = -1
		},
		"option OperationTimeout = 11s: must be 0 (chosen by the store) to a third of Lease, 10s": func(o *redisstore.Options) {
			o.OperationTimeout = 11 * time.Second
		},
		"option Retention = 0s: must be 1ms or more":                               func(o *redisstore.Options) { o.Retention = 0 },
		"option Database = -2: must be -1 (the URL's) or more":                     func(o *redisstore.Options) { o.Database = -2 },
		"option Database is 3, but a client that is given to New has its database": func(o *redisstore.Options) { o.Database = 3 },
		"option KeyPrefix =": func(o *redisstore.Options) { *o = redisstore.Options{} },
	} {
		_, err := redisstore.New(client, option)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "redisstore: option ")
	}
	_, err := redisstore.New(client, nil, func(o *redisstore.Options) {
		*o = redisstore.DefaultOptions()
		o.Logger = nil
		o.Lease = time.Second
	})
	require.NoError(t, err)
	_, err = redisstore.New(nil)
	require.EqualError(t, err, "redisstore: client is nil")
	var none *redis.Client
	_, err = redisstore.New(none)
	require.EqualError(t, err, "redisstore: client is a nil *redis.Client")
}

func TestRingIsRefusedAsItLosesMarkers(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	_, err := redisstore.New(ring)
	require.ErrorContains(t, err, "redisstore: client is a *redis.Ring")
	require.ErrorContains(t, err, "must be a *redis.Client or a *redis.ClusterClient")
}

func TestClientThatIgnoresDeadlinesIsRefused(t *testing.T) {
	single, cluster := redis.NewClient(&redis.Options{}), redis.NewClusterClient(&redis.ClusterOptions{})
	for name, client := range map[string]redis.UniversalClient{"*redis.Client": single, "*redis.ClusterClient": cluster} {
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		_, err := redisstore.New(client)
		require.EqualError(t, err, "redisstore: "+name+" ignores deadlines: set ContextTimeoutEnabled in its options")
	}
	store, err := redisstore.New(struct{ *redis.Client }{single})
	require.NoError(t, err, "of a wrapper it is not known")
	require.NoError(t, store.Close())
}

func TestInvalidURLErrorHidesThePassword(t *testing.T) {
	for _, url := range []string{
		"redis://user:secret@host:port/0", "http://user:secret@host", "redis://user:secret@host/0/1",
		"redis://user:secret@host:6379/?nothing=1",
		"user:secret@host:6379", "redis://user:sec%ret@host", "secret://host", "redis://host/secret", "redis://host?secret=1",
		// Passwords with characters that end a URL's host.
		"redis://user:secret/x@host:6379/0", "redis://user:secret#x@host:6379/0", "redis://user:secret?x@host:6379/0",
		"redis://user:12345/secret@host:6379", "redis://user:12345?secret=x@host:6379",
		"redis://user:12345#secret@host:6379/0",
		"redis://user:12345?db=1#secret@host",
	} {
		_, err := redisstore.Open(url)
		require.ErrorContains(t, err, "redisstore: URL: ", url)
		require.ErrorContains(t, err, "percent-encoded")
		for _, part := range []string{"sec", "12345"} {
			require.NotContains(t, err.Error(), part, url)
		}
	}
	encoded, err := redisstore.Open("redis://user:sec%2Fret%23%3F@127.0.0.1:6379/3")
	require.NoError(t, err)
	require.NoError(t, encoded.Close())
	_, err = redisstore.Open("redis://127.0.0.1:6379", func(o *redisstore.Options) { o.Lease = 0 })
	require.ErrorContains(t, err, "redisstore: option Lease = 0s")
}
