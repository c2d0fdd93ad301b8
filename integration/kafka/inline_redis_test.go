package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestInlineWithRedisHandlesEachMessageOnce proves contract 7.6 and 8.2. Two processes
// share only a broker and a Redis. They handle each message once, whichever of its deliveries comes
// first, although the Redis dies in between and one process leaves after it is back.
func TestInlineWithRedisHandlesEachMessageOnce(t *testing.T) {
	t.Parallel()
	const messages, partitions = 60, 4
	b := realBench(t)
	b.createTopic(partitions, nil)
	server, err := servers.StartRedis(servers.RedisOptions{Durable: true})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })

	var mu sync.Mutex
	handled, want, calls := map[string]int{}, map[string]int{}, 0
	// All partitions have the same messages in the same order. While one message is in its handler,
	// the other partitions wait for it, and no other message is being claimed.
	reached, killed := make(chan struct{}), make(chan struct{})
	h := inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
		mu.Lock()
		handled[m.ID]++
		calls++
		last := calls == messages/3
		mu.Unlock()
		if last {
			close(reached)
			select {
			case <-killed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	member := func() (ib *inbox.Inbox, end func()) {
		store, err := redisstore.Open(server.URL())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		cfg := b.config()
		cfg.Decoder = envelope.DecoderConfig{Type: "t"}
		ib = inboxtest.New(t, testenv.OpenSQLite(t, testenv.SQLiteDSN(t)), inboxtest.Brisk(),
			inbox.Configure(func(o *inbox.Options) {
				o.Logger = logger(t)
			}),
			inbox.Channel("c", inbox.Inline(inbox.InlineStore(store)), inbox.Kafka(cfg), inbox.On("t", h)))
		return ib, inboxtest.Start(t, ib)
	}
	first, leave := member()
	second, _ := member()
	half := func(ib *inbox.Inbox) bool { return len(ib.Health().Consumers[0].Partitions) == partitions/2 }
	eventually(t, "each has its half", func() bool { return half(first) && half(second) })

	var records []*kgo.Record
	for i := range messages {
		id := fmt.Sprintf("m%03d", i)
		want[id] = 1
		for p := range int32(partitions) {
			records = append(records, &kgo.Record{Partition: p, Value: []byte(id),
				Headers: []kgo.RecordHeader{{Key: "MessageId", Value: []byte(id)}}})
		}
	}
	b.produce(b.client, records[:len(records)/2]...)
	receive(t, reached)
	require.NoError(t, server.Kill())
	close(killed)
	out := func(ib *inbox.Inbox) bool { return ib.Health().InPlaceOutages["c"] != nil }
	eventually(t, "one says that it cannot go on", func() bool { return out(first) || out(second) })
	require.NoError(t, server.Start())
	// Leave only now: a member that loses its partitions while its Redis is down cannot write the
	// marker of what has just run, and that would run again.
	b.awaitEnd()
	leave()
	b.produce(b.client, records...)
	b.awaitEnd()

	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, want, handled)
	counted, other := first.Counters(), second.Counters()
	require.EqualValues(t, messages, counted.Processed+other.Processed)
	require.GreaterOrEqual(t, counted.DuplicateSkipped+other.DuplicateSkipped, int64(len(records)*3/2-messages),
		"more if a rebalance redelivered")
	require.Zero(t, counted.Failed+other.Failed+counted.Poisoned+other.Poisoned)
}
