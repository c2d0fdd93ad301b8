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

// decoder makes the messages of Messages of their records.
var decoder = envelope.DecoderConfig{Type: Type, Source: "bench", ContentType: "application/octet-stream"}

// record returns a message as a plain record, with the ID as the key and in a header.
func record(m handler.RawMessage) kafka.Message {
	return kafka.Message{Key: []byte(m.ID), Value: m.Content,
		Headers: []kafka.Header{{Key: "MessageId", Value: []byte(m.ID)}}}
}

// Decoded returns the messages as a channel decodes their records, so that accepting them stores the
// same as consuming them: with their key, headers and coordinates.
func Decoded(topic string, partitions int, messages []handler.RawMessage) ([]handler.RawMessage, error) {
	d, err := envelope.NewDecoder(decoder, nil)
	if err != nil {
		return nil, err
	}
	all := make([]handler.RawMessage, 0, len(messages))
	for i, m := range messages {
		r := record(m)
		r.Topic, r.Partition, r.Offset, r.Time = topic, i%partitions, int64(i/partitions), time.Now()
		received := d.Decode(Channel, kafkaconsumer.RecordOf(r))
		if received.Err != nil {
			return nil, received.Err
		}
		all = append(all, received.Messages...)
	}
	return all, nil
}

// OpenKafka is like Open, with one handler and a channel that consumes a topic from its beginning
// with a group of its own. The consumer has its default settings.
func OpenKafka(
	ctx context.Context, dsn string, brokers []string, topic string, options ...inbox.Option,
) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.openOn(ctx, postgres.Open(dsn), []inbox.ChannelOption{
		inbox.Kafka(kafkaconsumer.Config{
			Brokers: brokers, Topics: []string{topic}, GroupID: topic + "-" + uuid.NewString(),
			Decoder: decoder,
		}),
		inbox.On(Type, ib.handlers(1)...),
	}, options...)
}

// Produce writes messages as plain records.
func Produce(ctx context.Context, admin *servers.Admin, topic string, messages []handler.RawMessage) error {
	const batch = 2_000
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for from := 0; from < len(messages); from += batch {
		g.Go(func() error {
			var records []kafka.Message
			for _, m := range messages[from:min(from+batch, len(messages))] {
				records = append(records, record(m))
			}
			return admin.Produce(ctx, topic, records...)
		})
	}
	return g.Wait()
}

// Accepted waits until that many messages are stored.
func (ib *Inbox) Accepted(ctx context.Context, n int) error {
	ticker := time.NewTicker(5 * time.Millisecond)
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
