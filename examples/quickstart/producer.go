package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Coordinates say where a record is.
type Coordinates struct {
	Partition int32
	Offset    int64
}

// Journal is what the producer knows the broker to have acknowledged. It lives
// in the parent process, which is never killed: what the service does is
// judged by it.
type Journal struct {
	Orders     map[string]*OrderPlaced // by order ID, which is the message ID too
	Malformed  []Coordinates
	Duplicates int
	Records    int
}

// Producer produces events and keeps the journal. It is safe for concurrent
// use.
type Producer struct {
	broker *Broker

	mu      sync.Mutex
	journal Journal
	failed  error
}

// NewProducer makes a producer with an empty journal.
func NewProducer(broker *Broker) *Producer {
	return &Producer{broker: broker, journal: Journal{Orders: map[string]*OrderPlaced{}}}
}

// Send produces events in their order and waits until all are acknowledged.
func (p *Producer) Send(ctx context.Context, events []Event) error {
	for _, e := range events {
		p.broker.client.Produce(ctx, &kgo.Record{
			Topic: p.broker.Topic, Key: []byte(e.Key), Value: e.Value,
			Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
		}, func(r *kgo.Record, err error) { p.note(e, r, err) })
	}
	err := p.broker.client.Flush(ctx)
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
		p.journal.Malformed = append(p.journal.Malformed, Coordinates{r.Partition, r.Offset})
	case e.Duplicate:
		p.journal.Duplicates++
	default:
		p.journal.Orders[e.Order.OrderID] = e.Order
	}
}

// Produced is how many records have been acknowledged so far.
func (p *Producer) Produced() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.journal.Records
}

// Journal returns the journal; nothing may be produced any more.
func (p *Producer) Journal() Journal {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.journal
}
