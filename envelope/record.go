// Package envelope turns a transport's records into messages. It has CloudEvents, plain records, and the strategies
// that find a message's ID (contract 4.4, 4.5).
package envelope

import (
	"errors"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Record is one record as a transport delivered it. A nil key, value or header value differs from an empty one.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   []handler.Header
	// RawHeaders holds the headers in Kafka's record format, their number first, if there are too many to be read
	// (DecoderConfig.MaxHeaders). Headers is empty then. It is nil in all other records.
	RawHeaders []byte
}

// Received is a record with what was decoded from it: its messages (possibly several for batched CloudEvents), or the
// reason why it is bad.
type Received struct {
	Record   Record
	Messages []handler.RawMessage
	// Err, if not nil, is why no message could be made of the record.
	Err error
}

// Disposition is what may happen to a record's offset after an accept.
type Disposition int

const (
	// Durable means that everything the record asks for is stored (messages, a rejected row) or counted (unrouted). Its
	// offset may be committed.
	Durable Disposition = iota
	// Halt means that the record is bad and the policy is to stop before it. Its offset must not be committed.
	Halt
	// DeadLetter means that the record is bad and the policy is to publish it. Its offset must not be committed before
	// the dead-letter topic has acknowledged it.
	DeadLetter
)

// Result is what happened to one record.
type Result struct {
	Disposition Disposition
	// Accepted, Duplicates and Unrouted count the record's messages.
	Accepted, Duplicates, Unrouted int
	// Err is why the record is bad, nil if it is not.
	Err error
	// Skippable means that the record halts the partition for its own defect, and can be stored as rejected instead
	// (contract 7.10).
	Skippable bool
	// Reason is the text of Err as a dead letter has it: redacted, valid UTF-8 and at most 2,000 characters (contract
	// 3.6, 11.6). It is empty if there is none.
	Reason string
}

// ErrInterrupted means that a record was not finished and has to be delivered again. Interrupted attempts are not
// charged (contract 7.6).
var ErrInterrupted = errors.New("delivery was interrupted")
