package envelope_test

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// A decoder takes CloudEvents and plain records. Kafka channels have one, which kafkaconsumer.Config configures.
func Example() {
	decoder, err := envelope.NewDecoder(envelope.DecoderConfig{
		ID:         envelope.HeaderID("order-event-id"), // of plain records and CloudEvents
		TypeHeader: "kind",
	}, zap.NewNop())
	if err != nil {
		panic(err)
	}
	received := decoder.Decode("orders.events", envelope.Record{
		Topic: "orders.events", Value: []byte(`{"sku": "hat"}`),
		Headers: []handler.Header{
			{Key: "order-event-id", Value: []byte("order-1")},
			{Key: "kind", Value: []byte("order.placed")},
		}})
	if received.Err != nil {
		panic(received.Err)
	}
	for _, m := range received.Messages {
		fmt.Println(m.ID, m.Type, m.Source, string(m.Content))
	}
	// Output: order-1 order.placed kafka:orders.events {"sku": "hat"}
}

// Without configuration a CloudEvent's id is the message's ID, and its type routes the message.
func ExampleDecoder_Decode() {
	decoder, err := envelope.NewDecoder(envelope.DefaultDecoderConfig(), zap.NewNop())
	if err != nil {
		panic(err)
	}
	event := `{"specversion": "1.0", "id": "order-1", "source": "/shop", "type": "order.placed", "data": {"sku": "hat"}}`
	received := decoder.Decode("orders.events", envelope.Record{Topic: "orders.events", Value: []byte(event),
		Headers: []handler.Header{{Key: "content-type", Value: []byte("application/cloudevents+json")}}})
	fmt.Println(received.Messages[0].ID, received.Messages[0].Type, string(received.Messages[0].Content))

	anonymous := decoder.Decode("orders.events", envelope.Record{Topic: "orders.events", Value: []byte(`{"sku": "hat"}`),
		Headers: []handler.Header{{Key: "MessageType", Value: []byte("order.placed")}}})
	fmt.Println(errors.Is(anonymous.Messages[0].IDErr, envelope.ErrMissingID))
	// Output:
	// order-1 order.placed {"sku": "hat"}
	// true
}
