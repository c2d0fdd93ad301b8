package handler

import "time"

// Properties are a message's headers, attributes and transport coordinates.
type Properties struct {
	// Channel is the channel that accepted the message.
	Channel string
	// Headers are the transport's headers in their order. Names may repeat. Names and values may be any bytes; a nil
	// value differs from an empty one.
	Headers []Header
	// Attributes are named strings that came with the message, for example CloudEvents context attributes and
	// extensions.
	Attributes map[string]string
	// Kafka is where the record came from; nil for other transports.
	Kafka *KafkaCoordinates
	// Traceparent is the span of the accept that stored the message, in the format of W3C Trace Context; empty if the
	// accept was not traced. The inbox sets it and replaces an application's value. The producer's context is a header
	// (contract 12).
	Traceparent string
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// KafkaCoordinates are where a record was. They do not identify it: a topic that is deleted and created again reuses
// them.
type KafkaCoordinates struct {
	Topic     string
	Partition int
	Offset    int64
	Timestamp time.Time
	Key       []byte
	// Tombstone says that the record had no value, which differs from an empty one.
	Tombstone bool
	// Index is the message's place in its record, from 0: which event of a batch it is.
	Index int
}

// Header returns the value of the first header of that exact name.
func (p Properties) Header(name string) (value []byte, ok bool) {
	for _, h := range p.Headers {
		if h.Key == name {
			return h.Value, true
		}
	}
	return nil, false
}
