// Package envelope turns a transport's records into messages: CloudEvents and
// plain records, and the strategies that find a message's ID (contract 4.4,
// 4.5).
package envelope

import (
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Record is one record as a transport delivered it. A nil key, value or
// header value differs from an empty one.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   []handler.Header
	// RawHeaders are the headers as Kafka's record format has them, their number
	// first, where there are too many to be read (DecoderConfig.MaxHeaders); then
	// Headers is empty. Nil in all other records.
	RawHeaders []byte
}

// Received is a record with what was decoded from it: its messages (more than
// one for batched CloudEvents), or the reason why it is bad.
type Received struct {
	Record   Record
	Messages []handler.RawMessage
	// Err, if not nil, says why no message could be made of the record.
	Err error
}

// Disposition says what may happen to a record's offset after an accept.
type Disposition int

const (
	// Durable: everything the record asks for is stored (messages, a rejected
	// row) or counted (unrouted); its offset may be committed.
	Durable Disposition = iota
	// Halt: the record is bad and policy is to stop before it; its offset
	// must not be committed.
	Halt
	// DeadLetter: the record is bad and policy is to publish it: its offset
	// must not be committed before the dead-letter topic has acknowledged it.
	DeadLetter
)

// Result says what became of one record.
type Result struct {
	Disposition Disposition
	// Accepted, Duplicates and Unrouted count the record's messages.
	Accepted, Duplicates, Unrouted int
	// Err says why the record is bad; nil if it is not.
	Err error
	// Reason is the text of Err as a dead letter has it: redacted, valid UTF-8 and at
	// most models.MaxLastError characters (contract 3.6, 11.6). Empty if there is none.
	Reason string
}

// ErrInterrupted says that a record was not brought to its end: it is to be
// delivered again. Nothing is charged for what was cut short (contract 7.6).
var ErrInterrupted = errors.New("delivery was interrupted")
