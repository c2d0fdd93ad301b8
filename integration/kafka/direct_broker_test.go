package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestDirectHandlerOutlastingSessionInRebalanceCommits proves contract 7.6 on a real
// broker, which times sessions with its own clock. A handler that outlasts the session while a
// second member joins keeps its record, and nothing is handled twice.
func TestDirectHandlerOutlastingSessionInRebalanceCommits(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		b := realBench(t).watch()
		b.createTopic(2, nil)
		var records []*kgo.Record
		for i := range 20 {
			records = append(records, &kgo.Record{Partition: int32(i % 2), Value: fmt.Append(nil, i)})
		}
		b.produce(b.client, records...)
		var mu sync.Mutex
		handled := map[string]int{}
		entered := make(chan struct{}, 2)
		cfg := b.config()
		cfg.Decoder = envelope.DecoderConfig{Type: "t"}
		cfg.SessionTimeout, cfg.RebalanceTimeout, cfg.DrainTimeout = 6*time.Second, 30*time.Second, 15*time.Second
		h := inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			c := m.Properties.Kafka
			if c.Offset == 0 {
				entered <- struct{}{}
				select {
				case <-time.After(cfg.SessionTimeout + 1500*time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			mu.Lock()
			handled[string(m.Payload)]++
			mu.Unlock()
			b.ledger.mu.Lock()
			defer b.ledger.mu.Unlock()
			b.ledger.store(place{c.Topic, c.Partition}, envelope.Record{Offset: c.Offset})
			return nil
		})
		run := func() *inbox.Inbox {
			ib := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
				o.Logger = logger(t)
			}),
				inbox.Channel("c", inbox.Direct(), inbox.Kafka(cfg), inbox.On("t", h)))
			inboxtest.Start(t, ib)
			return ib
		}
		run()
		receive(t, entered)
		receive(t, entered)
		second := run()
		eventually(t, "the second has its part", func() bool { return len(second.Health().Consumers[0].Partitions) == 1 })
		b.awaitEnd()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, handled, 20)
		for value, times := range handled {
			require.Equal(t, 1, times, value)
		}
	})
}
