package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// One record in so many is a duplicate, is malformed, fails its first attempt, fails every attempt.
const (
	oneDuplicateIn = 10
	oneMalformedIn = 50
	oneFailsOnceIn = 25
	oneAlwaysFails = 100
)

// handlerKeys are the keys under which every order gets a status.
var handlerKeys = []string{bookRevenue, notifyCustomer}

// Event is one record to produce.
type Event struct {
	Order     *OrderPlaced // nil if the record is malformed
	Duplicate bool         // the order has been produced before
	Key       string
	Value     []byte // a CloudEvent as JSON
}

// MakeEvents makes n records in the order in which they are to be produced. Duplicates are equal to any
// earlier order, as when a producer resends after a timeout, or replays a day.
func MakeEvents(n int, random *rand.Rand) []Event {
	duplicates, malformed := n/oneDuplicateIn, n/oneMalformedIn
	fresh := makeOrders(n, n-duplicates-malformed, random)
	events, originals := make([]Event, 0, n), make([]Event, 0, len(fresh))
	for len(events) < n {
		switch pick := random.IntN(n - len(events)); {
		case pick < malformed:
			events = append(events, makeMalformed(malformed))
			malformed--
		case pick < malformed+duplicates && len(originals) > 0:
			again := originals[random.IntN(len(originals))]
			again.Duplicate = true
			events = append(events, again)
			duplicates--
		default:
			order := fresh[0]
			e := Event{Order: order, Key: order.Customer, Value: cloudEvent(order.OrderID, order)}
			events, originals, fresh = append(events, e), append(originals, e), fresh[1:]
		}
	}
	return events
}

// makeOrders makes the distinct orders among n records. Some have faults, shared between the handlers.
func makeOrders(n, count int, random *rand.Rand) []*OrderPlaced {
	orders := make([]*OrderPlaced, count)
	for i := range orders {
		orders[i] = &OrderPlaced{OrderID: fmt.Sprintf("order-%06d", i+1),
			Customer: fmt.Sprintf("customer-%d@example.com", random.IntN(n)+1), Cents: random.Int64N(100_000) + 1}
	}
	failOnce, failAlways := n/oneFailsOnceIn, n/oneAlwaysFails
	for i, unlucky := range random.Perm(count)[:failAlways+failOnce] {
		fault := once
		if i < failAlways {
			fault = always
		}
		orders[unlucky].Faults = map[string]string{handlerKeys[i%len(handlerKeys)]: fault}
	}
	return orders
}

// makeMalformed makes a record that cannot become a message, each time for another reason.
func makeMalformed(which int) Event {
	order := &OrderPlaced{Customer: "customer-0@example.com"}
	values := [][]byte{
		[]byte(`{"specversion": "1.0", "type": "order.pla`),
		cloudEvent("", order),                       // no ID
		cloudEvent(strings.Repeat("x", 201), order), // an ID that does not fit
	}
	return Event{Key: order.Customer, Value: values[which%len(values)]}
}

func cloudEvent(id string, order *OrderPlaced) []byte {
	envelope := map[string]any{
		"specversion": "1.0", "type": "order.placed", "source": "/shop", "datacontenttype": "application/json", "data": order,
	}
	if id != "" {
		envelope["id"] = id
	}
	value, err := json.Marshal(envelope)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return value
}

// Journal is what the broker has acknowledged. It is kept in the parent process, which is never killed: what
// the service does is judged by it.
type Journal struct {
	Orders     map[string]*OrderPlaced // by order ID, which is the message ID too
	Malformed  []demo.Record
	Duplicates int
	Records    int
}

// Produce produces events in their order and waits until all are acknowledged.
func (j *Journal) Produce(ctx context.Context, client *kgo.Client, topic string, events []Event) error {
	records, byRecord := make([]*kgo.Record, len(events)), map[*kgo.Record]Event{}
	for i, e := range events {
		records[i] = &kgo.Record{Topic: topic, Key: []byte(e.Key), Value: e.Value,
			Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}}}
		byRecord[records[i]] = e
	}
	results := client.ProduceSync(ctx, records...)
	for _, r := range results {
		if r.Err == nil {
			j.note(byRecord[r.Record], r.Record)
		}
	}
	if err := results.FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

func (j *Journal) note(e Event, r *kgo.Record) {
	j.Records++
	switch {
	case e.Order == nil:
		j.Malformed = append(j.Malformed, demo.Record{Partition: r.Partition, Offset: r.Offset})
	case e.Duplicate:
		j.Duplicates++
	default:
		j.Orders[e.Order.OrderID] = e.Order
	}
}
