package kafkaconsumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestMessageReadWithKafkaGoIsARecord(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	m := kafka.Message{Topic: "orders", Partition: 3, Offset: 42, Time: at, Key: []byte("k7"),
		Headers: []kafka.Header{{Key: "MessageId", Value: []byte("h1")}, {Key: "Empty", Value: []byte{}}, {Key: "Null"}}}
	require.Equal(t, envelope.Record{Topic: "orders", Partition: 3, Offset: 42, Timestamp: at, Key: []byte("k7"),
		Headers: []handler.Header{{Key: "MessageId", Value: []byte("h1")}, {Key: "Empty", Value: []byte{}}, {Key: "Null"}}},
		kafkaconsumer.RecordOf(m))
}

func TestMessageReadWithKafkaGoIsHandledOnce(t *testing.T) {
	store, err := memstore.New()
	require.NoError(t, err)
	calls := 0
	handle, err := idempotent.Wrap(store, "billing", func(context.Context, kafka.Message) error { calls++; return nil },
		idempotent.RecordBy(kafkaconsumer.RecordOf), idempotent.IDFrom(envelope.HeaderID()))
	require.NoError(t, err)
	for offset := range int64(3) { // a producer that sends again
		require.NoError(t, handle(t.Context(), kafka.Message{Topic: "orders", Offset: offset,
			Headers: []kafka.Header{{Key: "MessageId", Value: []byte("m1")}}}))
	}
	require.ErrorIs(t, handle(t.Context(), kafka.Message{Topic: "orders"}), idempotent.ErrMissingID)
	require.Equal(t, 1, calls)
}
