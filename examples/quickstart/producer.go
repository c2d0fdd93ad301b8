package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Journal is what the broker has acknowledged to the producer. It lives in the parent process, which is
// never killed: what the service does is judged by it.
type Journal struct {
	Orders     map[string]*OrderPlaced // by order ID, which is the message ID too
	Malformed  []demo.Record
	Duplicates int
	Records    int
}

// Producer produces events and keeps the journal. It is safe for concurrent use.
type Producer struct {
	client *kgo.Client
	topic  string

	mu      sync.Mutex
	journal Journal
	failed  error
}

// NewProducer returns a producer with an empty journal.
func NewProducer(client *kgo.Client, topic string) *Producer {
	return &Producer{client: client, topic: topic, journal: Journal{Orders: map[string]*OrderPlaced{}}}
}

// Send produces events in their order and waits until all are acknowledged.
func (p *Producer) Send(ctx context.Context, events []Event) error {
	for _, e := range events {
		p.client.Produce(ctx, &kgo.Record{
			Topic: p.topic, Key: []byte(e.Key), Value: e.Value,
			Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
		}, func(r *kgo.Record, err error) { p.note(e, r, err) })
	}
	err := p.client.Flush(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := errors.Join(err, p.failed); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

func (p *Producer) note(e Event, r *kgo.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = err // the last one is as good as the first
		return
	}
	p.journal.Records++
	switch {
	case e.Order == nil:
		p.journal.Malformed = append(p.journal.Malformed, demo.Record{Partition: r.Partition, Offset: r.Offset})
	case e.Duplicate:
		p.journal.Duplicates++
	default:
		p.journal.Orders[e.Order.OrderID] = e.Order
	}
}

// Journal returns a copy of the journal.
func (p *Producer) Journal() Journal {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.journal
	j.Orders = maps.Clone(j.Orders)
	return j
}
