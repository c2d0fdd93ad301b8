package idempotent

import "github.com/gorm-inbox/inbox/envelope"

// Identified is a message that knows its ID; an empty ID is a missing one. The inbox's own messages, raw messages and
// records need not implement it. If a type that embeds one of them implements it, this ID counts.
type Identified interface{ MessageID() string }

// Typed is a message that knows its type. The type is stored with the key, for people who inspect the markers. Messages
// of the inbox need not implement it.
type Typed interface{ MessageType() string }

// KeyBy computes the message ID from the message itself, typically from a field of its payload; T is the type that the
// handler takes. If the result is empty, or the error is ErrMissingID, the ID is found as without KeyBy (contract 4.4).
// Any other error refuses the message; a panic is not recovered. find is called concurrently, and must return the same
// ID each time the message is delivered. Do not use it for values that other messages share, such as the ID of the
// entity a message is about: all messages but the first would count as duplicates.
func KeyBy[T any](find func(message T) (string, error)) Option {
	return func(c *config) { c.keyBy = find }
}

// IDFrom finds the ID by a strategy of package envelope, in the headers and coordinates of a handler.Message,
// handler.RawMessage or envelope.Record, or of the record that RecordBy returns. For a record the default is the zero
// IDStrategy: the CloudEvents id, or the header "MessageId" or "id". With envelope.SourceAndID the source is part of
// the ID, too. Do not use it for a handler.Message whose channel has found the ID already: without IDFrom that ID
// counts.
func IDFrom(strategy envelope.IDStrategy) Option {
	return func(c *config) { c.id, c.hasID, c.composite = strategy, true, false }
}

// CompositeID makes the ID "{handler key}:{correlation ID}" from the header of that name, or from "CorrelationId" if
// the name is empty. It takes the same messages as IDFrom. Do not use it where one correlation ID covers several
// messages for the handler: all but the first would count as duplicates (contract 4.4).
func CompositeID(header string) Option {
	return func(c *config) { c.id, c.hasID, c.composite = envelope.CorrelationID(header), true, true }
}

// LegacyKeys are former keys of a renamed handler, the newest first: a message that was processed under one of them is
// skipped, and a processed message is remembered under all of them. So the programs from before and after the rename
// may run side by side. Keep them for as long as Retention. They have no effect with CompositeID, whose IDs contain the
// key, and are an option of one handler. An inbox sets its handlers' legacy keys itself (contract 8.3).
func LegacyKeys(keys ...string) Option {
	return func(c *config) { c.legacyKeys = keys }
}

// RecordBy converts a message of another library to a record; T is the type that the handler takes. For kafka-go use
// kafkaconsumer.RecordOf. record is called concurrently. Do not use it for the inbox's own types, which are known.
func RecordBy[T any](record func(message T) envelope.Record) Option {
	return func(c *config) { c.recordBy = record }
}
