package idempotent

import "github.com/gorm-inbox/inbox/envelope"

// Identified is a message that knows its ID; an empty one is missing. Messages of
// the inbox, raw messages and records need not implement it; what embeds one and
// implements it has this ID.
type Identified interface{ MessageID() string }

// Typed is a message that knows its type, which is kept beside the key for those
// who look at the markers. Messages of the inbox need not implement it.
type Typed interface{ MessageType() string }

// KeyBy takes the message ID from the message itself, typically a field of its
// payload; T is what the handler takes. If the result is empty, or the error is
// ErrMissingID, the ID is looked for as without KeyBy (contract 4.4). Any other
// error refuses the message; a panic goes on to the caller. find is called
// concurrently, and must return the same each time the message comes. Do not use
// it for what comes again in other messages, such as the ID of the entity a
// message is about: all but its first message would be taken for duplicates.
func KeyBy[T any](find func(message T) (string, error)) Option {
	return func(c *config) { c.keyBy = find }
}

// IDFrom finds the ID by a strategy of package envelope, in the headers and
// coordinates of a handler.Message, handler.RawMessage or envelope.Record, or of what
// RecordBy makes a record of. Do not use it for a handler.Message whose channel
// found the ID before: without it that ID counts. For a record the default is the
// zero IDStrategy: the CloudEvents id, or the header "MessageId" or "id". The
// source is no part of what it finds, see Key.
func IDFrom(strategy envelope.IDStrategy) Option {
	return func(c *config) { c.id, c.hasID, c.composite = strategy, true, false }
}

// CompositeID makes the ID "{handler key}:{correlation ID}" of the header of
// that name, "CorrelationId" if it is empty; what IDFrom says about messages
// holds. Do not use it where one correlation ID covers several messages for
// the handler: all but the first would be taken for duplicates (contract 4.4).
func CompositeID(header string) Option {
	return func(c *config) { c.id, c.hasID, c.composite = envelope.CorrelationID(header), true, true }
}

// RecordBy says how a message of another library looks as a record; T is what the
// handler takes. For kafka-go that is kafkaconsumer.RecordOf. record is called
// concurrently. Do not use it for the inbox's own types, which are known.
func RecordBy[T any](record func(message T) envelope.Record) Option {
	return func(c *config) { c.recordBy = record }
}
