package kafkaconsumer

import (
	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// RecordOf converts a message that an application has read with kafka-go itself into the record
// that ID strategies read. Pass it to idempotent.RecordBy. It shares the message's memory.
func RecordOf(m kafka.Message) envelope.Record {
	headers := make([]handler.Header, len(m.Headers))
	for i, h := range m.Headers {
		headers[i] = handler.Header{Key: h.Key, Value: h.Value}
	}
	return envelope.Record{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Timestamp: m.Time, Key: m.Key,
		Value: m.Value, Headers: headers}
}
