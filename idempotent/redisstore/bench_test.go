package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// BenchmarkMessage compares the cost of a message with the two commands of the simplest
// implementation: check, run, write. That one protects neither from a concurrent duplicate nor from
// a late write of its own.
func BenchmarkMessage(b *testing.B) {
	url, prefix := testenv.Redis(b)
	options, err := redis.ParseURL(url)
	require.NoError(b, err)
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	b.Cleanup(func() { require.NoError(b, client.Close()) })
	store, err := redisstore.New(client, func(o *redisstore.Options) { o.KeyPrefix = prefix })
	require.NoError(b, err)
	handle := map[string]func(ctx context.Context, run idempotent.Run) error{
		"the store": func(ctx context.Context, run idempotent.Run) error {
			_, err := store.Run(ctx, run, succeed)
			return err
		},
		"look, run, write": func(ctx context.Context, run idempotent.Run) error {
			key := prefix + run.Key.HandlerKey + run.Key.MessageID
			if n, err := client.Exists(ctx, key).Result(); n > 0 || err != nil {
				return err
			}
			return client.Set(ctx, key, "processed", run.Retention).Err()
		},
	}
	for _, kind := range []struct {
		name string
		id   func(i int) string
	}{
		{"new", func(i int) string { return fmt.Sprint(time.Now().UnixNano(), i) }},
		{"duplicate", func(int) string { return "the same" }},
	} {
		for _, name := range []string{"the store", "look, run, write"} {
			b.Run(kind.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					run := idempotent.Run{Key: idempotent.Key{MessageID: kind.id(i), HandlerKey: name}, Retention: time.Minute}
					require.NoError(b, handle[name](b.Context(), run))
				}
			})
		}
	}
}
