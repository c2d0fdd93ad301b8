// Package envelope turns a transport's records into messages. It has CloudEvents, plain records, and the strategies
// that find a message's ID (contract 4.4, 4.5).
package envelope

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
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

// Received is a record with its messages, or the reason why it is bad. Batched CloudEvents have any number of messages,
// a skipped tombstone none.
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
	// Outcomes are those of the record's messages, in their order, while a topic is read again. Otherwise there are none.
	Outcomes []handler.AcceptOutcome
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

// Gap is a place in a partition where the records that should be read next do not exist: retention removed them, or the
// log was truncated or begins again.
type Gap struct {
	Topic     string
	Partition int
	// From is the offset that should be read next. To is where reading continues: above From if records were removed,
	// below it if the log begins again.
	From, To int64
	Reason   string
}

// Sentinels of what can be wrong with a record. Find them with errors.Is.
var (
	// ErrMissingID means that the channel's ID strategy found nothing in the record (contract 4.4). A strategy of your
	// own may return it, wrapped or not.
	ErrMissingID = errors.New("message ID is missing")
	// ErrBadID means that the ID is not valid UTF-8 without NUL. It is never altered to fit (contract 3.6).
	ErrBadID = errors.New("message ID is not valid UTF-8 without NUL")
	// ErrSharedID means that several events of one batched record would get the same ID: it is taken from the record
	// and not from the event, or a function found it for two of them.
	ErrSharedID = errors.New("one ID for several messages of a record")
	// ErrMissingType means that a plain record has no type and the channel has none.
	ErrMissingType = errors.New("message type is missing")
	// ErrUnavailable means that DecoderConfig.TypeOf or NotBefore could not reach a service that it needs, such as a
	// schema registry. The record is not bad: its consumer decodes it again until that succeeds, and its partition waits
	// (contract 4.5). A function of your own may return it, wrapped.
	ErrUnavailable = errors.New("temporarily unavailable")
	// ErrTombstone means that the record has no value and the channel rejects such records (TombstoneReject).
	ErrTombstone = errors.New("record has no value (tombstone)")
	// ErrNotCloudEvent means that the record is no CloudEvent and the channel accepts nothing else.
	ErrNotCloudEvent = errors.New("record is not a CloudEvent")
	// ErrMalformed means that the record claims to be a CloudEvent and breaks the rules of CloudEvents 1.0.
	ErrMalformed = errors.New("malformed CloudEvent")
)

// IDTooLongError means that a message ID has more characters than are allowed.
type IDTooLongError struct {
	// Length is in characters, not bytes.
	Length int
}

// Error names the length and what is allowed.
func (e *IDTooLongError) Error() string {
	return fmt.Sprintf("message ID has %d characters: must be 1 to %d", e.Length, columns.MaxMessageID)
}

// CheckID returns an error if id cannot be a message ID: ErrMissingID, ErrBadID or an *IDTooLongError (contract 4.4).
func CheckID(id string) error {
	if id == "" {
		return ErrMissingID
	}
	if !utf8.ValidString(id) || strings.ContainsRune(id, 0) {
		return ErrBadID
	}
	if n := utf8.RuneCountInString(id); n > columns.MaxMessageID {
		return &IDTooLongError{Length: n}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}
