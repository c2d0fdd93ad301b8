// Package events publishes what the shop's contexts send each other: CloudEvents on Kafka topics.
package events

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Event is one CloudEvent.
type Event struct {
	// ID identifies an event that comes again.
	ID, Type, Source string
	// Key chooses the partition.
	Key  string
	Data any // encoded as JSON
}

// Publisher produces events. It is safe for concurrent use.
type Publisher struct{ client *kgo.Client }

// NewPublisher connects to brokers when it is needed. Close closes it.
func NewPublisher(brokers ...string) (*Publisher, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordDeliveryTimeout(10*time.Second))
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	return &Publisher{client}, nil
}

// Publish returns when the brokers have acknowledged the event. After an error it is unknown whether it was
// written: publish it again, with the same ID.
func (p *Publisher) Publish(ctx context.Context, topic string, e Event) error {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	headers := []kgo.RecordHeader{{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(e.ID)},
		{Key: "ce_type", Value: []byte(e.Type)},
		{Key: "ce_source", Value: []byte(e.Source)}, {Key: "content-type", Value: []byte("application/json")}}
	record := &kgo.Record{Topic: topic, Key: []byte(e.Key), Value: data, Headers: headers}
	if err := p.client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return fmt.Errorf("publish event %s to %s: %w", e.ID, topic, err)
	}
	return nil
}

// Close closes it.
func (p *Publisher) Close() { p.client.Close() }
