package redisstore_test

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
)

type Payment struct {
	Reference string
	Cents     int
}

// This store uses the application's client, for all handlers of a channel.
func Example() {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{"localhost:6379"}, ContextTimeoutEnabled: true,
	})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client, func(o *redisstore.Options) {
		o.KeyPrefix = "payments"
		o.Lease = time.Minute
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = store.Close() }()
	charge, err := idempotent.Wrap(store, "charge", func(ctx context.Context, p Payment) error {
		return nil // charge, and watch ctx: it ends when the claim is lost
	}, idempotent.KeyBy(func(p Payment) (string, error) { return p.Reference, nil }))
	if err != nil {
		panic(err)
	}
	if err := charge(context.Background(), Payment{"r-1", 4_200}); err != nil {
		return // do not acknowledge: let it be delivered again
	}
}

// A store with a client of its own, in database 2.
func ExampleOpen() {
	store, err := redisstore.Open("redis://localhost:6379", func(o *redisstore.Options) { o.Database = 2 })
	if err != nil {
		panic(err)
	}
	defer func() { _ = store.Close() }()
}
