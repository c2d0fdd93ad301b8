// Package handler declares handlers: the messages they get, typed handlers and their codecs, the errors by which they
// choose an outcome, and the registry of handler keys and routes.
package handler

import "time"

// Metadata is everything about a message except its payload.
type Metadata struct {
	// ID is the message ID: 1 to 200 characters (contract 4.4).
	ID string
	// Type and Source are the CloudEvents attributes of these names, or what the channel maps to them.
	Type   string
	Source string
	// ContentType is the payload's media type; empty if the producer gave none.
	ContentType string
	// Transport names what delivered the message: "kafka", or "publish" for messages the application accepts itself.
	Transport string
	// Properties are the headers, attributes and transport coordinates.
	Properties Properties
	// OrderingKey is the key of the message's lane; nil if it has none.
	OrderingKey []byte
	// ReceivedAt is when the message was accepted first, in UTC.
	ReceivedAt time.Time
	// OccurredAt is the time of the event that the message is about, in UTC: the CloudEvents attribute "time", else the
	// timestamp of the Kafka record, else zero. It is the producer's word, by the producer's clock (contract 4.5).
	OccurredAt time.Time

	// HandlerKey is the key of the status this attempt belongs to. After a rename it may be a legacy key.
	HandlerKey string
	// Attempt is 1 for the first attempt. It is one more for each charged failure, and for each worker that vanished
	// during an attempt since the last attempt that ended. If it is above 1 the handler may have run before.
	Attempt int
}

// Meta returns m. It makes the metadata accessible from any type that embeds Metadata.
func (m Metadata) Meta() Metadata { return m }

// Message is a message whose payload has been decoded into T.
type Message[T any] struct {
	Metadata
	Payload T
}

// RawMessage is a message before its body is decoded, as a transport or the application passes it to the inbox.
type RawMessage struct {
	// Channel is the declared channel that the message belongs to. A transport's consumer sets it.
	Channel string
	// ID is required: 1 to 200 characters of valid UTF-8 without NUL.
	ID string
	// IDErr, if not nil, is why a decoder found no usable ID. It counts only if the message is routed: routing comes
	// before ID checks (contract 4.6). Applications leave it nil.
	IDErr error
	// Type routes the message to the handlers of its channel.
	Type        string
	Source      string
	ContentType string
	// Content is the body; nil and empty are stored alike.
	Content []byte
	// Transport is at most 50 characters; empty means "publish".
	Transport  string
	Properties Properties
	// OrderingKey, if not nil, names the lane (contract 5.12).
	OrderingKey []byte
	// NotBefore, if not zero, is the time before which no handler runs the message: the first attempt of each is due
	// then, or at the handler's own NotBefore if that is later. It is cut to microseconds and judged by the database's
	// clock; a past time means at once, one more than ten years ahead makes the message invalid. A duplicate does not
	// change it. In a lane, later messages wait for it. Package idempotent ignores it, and accepts refuse all messages of
	// Inline and Direct channels. Do not use it to space out retries (contract 4.8).
	NotBefore time.Time
}

// Delivery is the input of one attempt: a stored message with its undecoded body.
type Delivery struct {
	Metadata
	Content []byte
}

// Properties are a message's headers, attributes and transport coordinates.
type Properties struct {
	// Channel is the channel that accepted the message.
	Channel string
	// Headers are the transport's headers in their order. Names may repeat. Names and values may be any bytes; a nil
	// value differs from an empty one.
	Headers []Header
	// Attributes are named strings that came with the message, such as CloudEvents attributes and extensions.
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

// KafkaCoordinates are where a record was. They do not identify it: a topic that is created again reuses them.
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
