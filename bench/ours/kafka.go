package ours

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"
	"gorm.io/driver/postgres"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// OpenKafka is like Open, with one handler and a channel that consumes a topic from its beginning
// with a group of its own. The consumer has its default settings.
func OpenKafka(
	ctx context.Context, dsn string, brokers []string, topic string, options ...inbox.Option,
) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.openOn(ctx, postgres.Open(dsn), []inbox.ChannelOption{
		inbox.Kafka(kafkaconsumer.Config{
			Brokers: brokers, Topics: []string{topic}, GroupID: topic + "-" + uuid.NewString(),
			Decoder: envelope.DecoderConfig{Type: Type, Source: "bench", ContentType: "application/octet-stream"},
		}),
		inbox.On(Type, ib.handlers(1)...),
	}, options...)
}

// Produce writes messages as plain records, with the ID as the key and in a header.
func Produce(ctx context.Context, admin *servers.Admin, topic string, messages []handler.RawMessage) error {
	const batch = 2_000
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for from := 0; from < len(messages); from += batch {
		g.Go(func() error {
			var records []kafka.Message
			for _, m := range messages[from:min(from+batch, len(messages))] {
				records = append(records, kafka.Message{Key: []byte(m.ID), Value: m.Content,
					Headers: []kafka.Header{{Key: "MessageId", Value: []byte(m.ID)}}})
			}
			return admin.Produce(ctx, topic, records...)
		})
	}
	return g.Wait()
}

// Accepted waits until that many messages are stored.
func (ib *Inbox) Accepted(ctx context.Context, n int) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for ib.Counters().Accepted < int64(n) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d accepted: %w", ib.Counters().Accepted, n, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}
