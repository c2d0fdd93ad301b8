package watermill

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// Forwarder is Watermill's outbox: messages in an SQL topic, and a component that hands each to another publisher.
type Forwarder struct {
	*Watermill
	out       *kafkaPublisher
	forwarder *forwarder.Forwarder
}

// kafkaPublisher is a Watermill publisher to a topic with the client of the other variants.
type kafkaPublisher struct {
	writer    *kafka.Writer
	published atomic.Int64
}

func (p *kafkaPublisher) Publish(_ string, messages ...*message.Message) error {
	records := make([]kafka.Message, len(messages))
	for i, m := range messages {
		records[i] = kafka.Message{Key: []byte(m.Metadata.Get("key")), Value: m.Payload,
			Headers: []kafka.Header{{Key: "MessageId", Value: []byte(m.UUID)}}}
	}
	if err := p.writer.WriteMessages(context.Background(), records...); err != nil {
		return err
	}
	p.published.Add(int64(len(messages)))
	return nil
}

func (p *kafkaPublisher) Close() error { return p.writer.Close() }

// OpenForwarder creates the tables.
func OpenForwarder(ctx context.Context, dsn string, brokers []string, to string) (*Forwarder, error) {
	w, err := Open(ctx, dsn, Settings{})
	if err != nil {
		return nil, err
	}
	writer := &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: to, Balancer: &kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll, BatchSize: 1000, BatchTimeout: time.Millisecond,
		Transport: &kafka.Transport{}} // the default one knows older topics alone
	f := &Forwarder{Watermill: w, out: &kafkaPublisher{writer: writer}}
	cfg := forwarder.Config{ForwarderTopic: topic}
	f.forwarder, err = forwarder.NewForwarder(w.subscriber, f.out, watermill.NopLogger{}, cfg)
	if err != nil {
		w.Close()
		return nil, err
	}
	return f, nil
}

// Fill stores n messages with so many keys.
func (f *Forwarder) Fill(ctx context.Context, n, keys int) error {
	publisher := forwarder.NewPublisher(f.publisher, forwarder.PublisherConfig{ForwarderTopic: topic})
	return trial.InBatches(ctx, n, 500, 4, func(ctx context.Context, from, to int) error {
		messages := make([]*message.Message, 0, to-from)
		for i := from; i < to; i++ {
			m := message.NewMessageWithContext(ctx, uuid.NewString(), ours.Payload)
			m.Metadata.Set("key", "key-"+strconv.Itoa(i%keys))
			messages = append(messages, m)
		}
		return publisher.Publish("out", messages...)
	})
}

// Forward publishes n messages.
func (f *Forwarder) Forward(ctx context.Context, n int) error {
	ended := make(chan error, 1)
	go func() { ended <- f.forwarder.Run(ctx) }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for f.out.published.Load() < int64(n) {
		select {
		case err := <-ended:
			return fmt.Errorf("the forwarder has ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("%d of %d forwarded: %w", f.out.published.Load(), n, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// Close ends the forwarder and closes everything.
func (f *Forwarder) Close() {
	_ = f.forwarder.Close()
	f.Watermill.Close()
}
